#include "coord/mount_check.hpp"

#include <stdlib.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <array>
#include <barrier>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "coord/bounded_store.hpp"
#include "coord/directory_store.hpp"

namespace ckpt::coord {
namespace {

constexpr std::uint64_t rounds = 20;
constexpr const char* contested = "contest";

// One of two writers that try to write the same revision. Both link at the same time, and each waits until the other
// has linked, too.
struct Contender {
  std::set<std::uint64_t> won;
  std::string failure;

  void run(const std::string& directory, RevisionHooks hooks, std::barrier<>& both) {
    const auto link = hooks.link;
    hooks.link = [&both, link](int at, const char* from, const char* to) {
      both.arrive_and_wait();
      const int result = link ? link(at, from, to) : ::linkat(at, from, at, to, 0);
      const int error = errno;
      both.arrive_and_wait();
      errno = error;
      return result;
    };
    try {
      DirectoryStore store(directory, hooks);
      for (std::uint64_t round = 0; round < rounds; ++round) {
        both.arrive_and_wait();
        if (const auto revision = store.put_if(contested, "value", round)) won.insert(*revision);
      }
    } catch (const std::exception& error) {
      failure = error.what();
    }
    both.arrive_and_drop();
  }
};

std::string outcome(const std::string& scratch, const RevisionHooks& hooks) {
  std::array<Contender, 2> contenders;
  std::barrier both(std::ssize(contenders));
  {
    std::vector<std::jthread> threads;
    for (Contender& contender : contenders) threads.emplace_back([&] { contender.run(scratch, hooks, both); });
  }
  for (const Contender& contender : contenders)
    if (!contender.failure.empty()) return contender.failure;
  constexpr const char* remedy = "; choose a directory on another mount, or etcd (option coordination)";
  for (const std::uint64_t revision : contenders[0].won)
    if (contenders[1].won.contains(revision))
      return "two test writers both wrote revision " + std::to_string(revision) + " of a record in " + scratch +
             ", so one agent could overwrite what another one has written: link(2) is not exclusive there" + remedy;
  const auto last = DirectoryStore(scratch, hooks).get(contested);
  if (!last || last->revision != rounds || contenders[0].won.size() + contenders[1].won.size() != rounds)
    return "a test writer in " + scratch +
           " did not see what another one wrote, so agents could miss each other's records" + remedy;
  return "";
}

}  // namespace

std::string what_fails_in(const std::string& directory, const RevisionHooks& hooks) {
  std::string scratch = directory + "/.ckptengine-doctor-XXXXXX";
  if (::mkdtemp(scratch.data()) == nullptr)
    return "cannot make a directory in " + directory + ": " + std::strerror(errno);
  std::string failure = outcome(scratch + "/job", hooks);
  std::error_code ignored;
  std::filesystem::remove_all(scratch, ignored);
  return failure;
}

std::string local_file_system(const std::string& directory) {
  struct statfs info {};
  if (::statfs(directory.c_str(), &info) != 0) return "";
  // The numbers of file systems that only one machine sees, as in statfs(2). Any other may be shared: NFS, Lustre, FUSE
  // and so on.
  switch (static_cast<std::uint32_t>(info.f_type)) {
    case 0x0000EF53:
      return "ext4";
    case 0x58465342:
      return "xfs";
    case 0x9123683E:
      return "btrfs";
    case 0x2FC12FC1:
      return "zfs";
    case 0x01021994:
      return "tmpfs";
    case 0x794C7630:
      return "overlay";
    default:
      return "";
  }
}

std::string local_store(const std::string& coordination) {
  constexpr std::int64_t moment_ms = 200;
  if (!coordination.starts_with('/')) return "";
  try {
    return within(moment_ms, coordination, [coordination] { return local_file_system(coordination); });
  } catch (const Failure&) {
    return "";
  }
}

}  // namespace ckpt::coord
