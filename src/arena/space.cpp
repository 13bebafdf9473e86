#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "arena/memory_groups.hpp"
#include "arena/node_arena.hpp"
#include "base/error.hpp"

namespace ckpt::arena {
namespace {

std::uint64_t machine_left_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
  return unlimited_bytes;
}

}  // namespace

std::uint64_t space_left_bytes(const std::string& directory) {
  struct statvfs file_system {};
  if (::statvfs(directory.c_str(), &file_system) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot ask for the space left in " + directory);
  const std::uint64_t free_bytes = std::uint64_t{file_system.f_bavail} * file_system.f_frsize;
  return std::min({free_bytes, machine_left_bytes(), memory_groups_left_bytes()});
}

}  // namespace ckpt::arena
