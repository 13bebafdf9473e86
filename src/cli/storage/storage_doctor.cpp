// The findings of `ckptctl doctor` about storage.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "base/unique_fd.hpp"
#include "cli/findings.hpp"
#include "cli/table.hpp"
#include "persist/transfer.hpp"

namespace ckpt::cli {
namespace {

constexpr std::size_t trial_bytes = std::size_t{32} << 20;

std::string rate_text(Clock::time_point begin) {
  const double ms = std::max(milliseconds_between(begin, Clock::now()), 1e-3);
  return human_bytes(static_cast<std::uint64_t>(trial_bytes / ms * 1e3)) + "/s";
}

std::string trial_name() {
  std::random_device random;
  return "ckptctl-doctor." + std::to_string(::getpid()) + "." + std::to_string(random());
}

// A file that is removed with its owner.
class Trial {
 public:
  explicit Trial(persist::FileSystem& files) : files_(files), path_(trial_name()) {}
  ~Trial() {
    try {
      files_.remove(path_);
    } catch (const Failure&) {  // it never existed, or it stays
    }
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  const std::string& path() const { return path_; }

  // The rate until the bytes are on the medium.
  std::string write() {
    const auto memory = files_.make_buffer(trial_bytes);
    std::mt19937_64 random(1);
    for (std::size_t at = 0; at < trial_bytes; at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(memory.get() + at, &word, sizeof(word));
    }
    const std::size_t block_bytes = files_.options().block_bytes;
    std::size_t next = 0;
    const auto begin = Clock::now();
    persist::write_whole(files_, path_, trial_bytes, [&](persist::Block& block) {
      if (next >= trial_bytes) return false;
      block = {next, memory.get() + next, std::min(block_bytes, trial_bytes - next), memory};
      next += block.size_bytes;
      return true;
    });
    files_.sync_directory("");
    return rate_text(begin);
  }

  std::string read() {
    const std::size_t block_bytes = files_.options().block_bytes;
    std::size_t next = 0;
    const auto begin = Clock::now();
    persist::read_blocks(
        files_, path_,
        [&](persist::Extent& extent) {
          if (next >= trial_bytes) return false;
          extent = {next, std::min(block_bytes, trial_bytes - next)};
          next += extent.size_bytes;
          return true;
        },
        [](const persist::Extent&, const std::byte*) {});
    return rate_text(begin);
  }

 private:
  persist::FileSystem& files_;
  const std::string path_;
};

Finding direct_access(const StorageScope& scope, const std::string& path) {
  if (!scope.location.starts_with('/'))
    return {Health::good, "page cache", "an NFS server is reached without it (libnfs)"};
  const UniqueFd direct(::open((scope.location + "/" + path).c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  if (direct) return {Health::good, "page cache", "is not used (O_DIRECT)"};
  return {Health::warning, "page cache",
          "this file system does not take O_DIRECT: writing a checkpoint pushes other data out of the page cache"};
}

void try_out(Storage& storage, const StorageScope& scope, std::vector<Finding>& findings) {
  Trial trial(storage.files());
  const std::string wrote = trial.write();
  const std::string read = trial.read();
  findings.push_back({Health::good, "storage",
                      storage.files().label("") + " can be written, " + human_bytes(trial_bytes) + " at " + wrote +
                          ", and read, at " + read});
  findings.push_back(direct_access(scope, trial.path()));
}

Finding free_space(Storage& storage, std::uint64_t largest_checkpoint_bytes) {
  const std::uint64_t free = storage.files().free_bytes();
  const std::string text = human_bytes(free) + " free";
  if (free >= largest_checkpoint_bytes) return {Health::good, "room", text};
  return {Health::warning, "room",
          text + ", less than a checkpoint takes (" + human_bytes(largest_checkpoint_bytes) +
              "); make room, or keep fewer (storage_keep_last)"};
}

std::vector<Finding> look_at_job(Storage& storage, const std::string& job,
                                 const std::vector<persist::StoredCheckpoint>& stored_checkpoints) {
  const std::string subject = "stored job " + job;
  if (stored_checkpoints.empty()) return {{Health::good, subject, "no checkpoints yet"}};
  std::vector<Finding> findings;
  const persist::StoredCheckpoint* const newest = newest_usable(stored_checkpoints);
  if (newest == nullptr)
    findings.push_back({Health::warning, subject,
                        "none of its " + std::to_string(stored_checkpoints.size()) + " checkpoints is usable"});
  else
    findings.push_back({Health::good, subject,
                        std::to_string(stored_checkpoints.size()) +
                            " checkpoints, the newest usable one of iteration " + std::to_string(newest->iteration)});
  for (const persist::StoredCheckpoint& stored : stored_checkpoints) {
    if (stored.usable()) continue;
    const std::string advice = stored.is_withheld ? "; see that this node can read it"
                               : storage.may_be_coming(job, stored_checkpoints, stored)
                                   ? ", unless it is being written now"
                                   : "; ckptctl rm removes it";
    findings.push_back({Health::warning, subject, problem_text(stored) + advice});
  }
  return findings;
}

}  // namespace

std::vector<Finding> storage_findings(const StorageScope& scope) {
  std::vector<Finding> findings;
  try {
    Storage storage(scope);
    const auto jobs = scope.job.empty() ? storage.jobs() : std::vector<std::string>{scope.job};
    try_out(storage, scope, findings);
    std::uint64_t largest_checkpoint_bytes = 0;
    std::vector<Finding> of_jobs;
    for (const std::string& job : jobs) {
      const auto stored_checkpoints = persist::list_checkpoints(storage.files(), job);
      for (const persist::StoredCheckpoint& stored : stored_checkpoints)
        if (stored.record) largest_checkpoint_bytes = std::max(largest_checkpoint_bytes, data_bytes(*stored.record));
      for (Finding& finding : look_at_job(storage, job, stored_checkpoints)) of_jobs.push_back(std::move(finding));
    }
    findings.push_back(free_space(storage, largest_checkpoint_bytes));
    findings.insert(findings.end(), of_jobs.begin(), of_jobs.end());
  } catch (const Failure& failure) {
    findings.push_back({Health::bad, "storage", failure.what()});
  }
  return findings;
}

}  // namespace ckpt::cli
