#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "arena/node_arena.hpp"
#include "base/error.hpp"

namespace ckpt::arena {
namespace {

constexpr std::uint64_t unlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t machine_left_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
  return unlimited;
}

// The files say "max" where there is no limit, and are missing outside of a control group.
std::uint64_t group_left_bytes() {
  std::ifstream limit_file("/sys/fs/cgroup/memory.max"), used_file("/sys/fs/cgroup/memory.current");
  std::uint64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return unlimited;
  return limit > used ? limit - used : 0;
}

}  // namespace

std::uint64_t space_left_bytes(const std::string& directory) {
  struct statvfs file_system {};
  if (::statvfs(directory.c_str(), &file_system) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot ask for the space left in " + directory);
  const std::uint64_t free_bytes = std::uint64_t{file_system.f_bavail} * file_system.f_frsize;
  return std::min({free_bytes, machine_left_bytes(), group_left_bytes()});
}

}  // namespace ckpt::arena
