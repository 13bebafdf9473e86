#include "device/pin_failure.hpp"

#include <sys/resource.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/text.hpp"

namespace ckpt::device {
namespace {

struct File {
  std::string path;
  std::string file_system;  // "" if unknown
};

bool is_below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder) && (folder == "/" || path.size() == folder.size() || path[folder.size()] == '/');
}

// The type of the innermost file system that has this path.
std::string file_system_of(const std::string& path) {
  std::ifstream mounts("/proc/self/mountinfo");
  std::string innermost, type_there;
  for (std::string line; std::getline(mounts, line);) {
    const auto dash = line.find(" - ");
    if (dash == line.npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string skipped, point, type;
    before >> skipped >> skipped >> skipped >> skipped >> point;
    after >> type;
    if (!is_below(path, point) || point.size() < innermost.size()) continue;
    innermost = point;
    type_there = type;
  }
  return type_there;
}

// The file that is mapped there. Nothing for memory without a file.
std::optional<File> file_at(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) continue;
    if (address < begin || address >= end) continue;
    const auto path_at = line.find('/');
    if (path_at == line.npos) return std::nullopt;
    const std::string path = line.substr(path_at);
    return File{path, file_system_of(path)};
  }
  return std::nullopt;
}

bool is_memory(const std::string& file_system) { return file_system == "tmpfs" || file_system == "hugetlbfs"; }

bool may_exceed_limits() {
  constexpr unsigned cap_ipc_lock = 14;
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    std::uint64_t effective = 0;
    if (std::sscanf(line.c_str(), "CapEff: %" SCNx64, &effective) == 1) return (effective >> cap_ipc_lock & 1) != 0;
  }
  return false;
}

}  // namespace

std::optional<std::uint64_t> lockable_bytes() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || may_exceed_limits())
    return std::nullopt;
  return limit.rlim_cur;
}

std::string pin_failure(const std::vector<Range>& ranges, const std::string& refusal,
                        std::optional<std::uint64_t> lockable) {
  std::uint64_t size_bytes = 0;
  for (const Range& range : ranges) size_bytes += range.size_bytes;
  const auto file = ranges.empty() ? std::nullopt : file_at(ranges.front().data);
  std::string text =
      "the driver refused to pin " + size_text(size_bytes) + " of the arena for the GPU (" + refusal + ")";
  if (file) text += "; the memory is " + file->path;
  if (file && !file->file_system.empty()) text += ", on " + file->file_system;
  const bool is_limited = lockable && *lockable < size_bytes;
  const bool is_elsewhere = file && !file->file_system.empty() && !is_memory(file->file_system);
  if (is_elsewhere) text += "; drivers refuse file systems on storage: set arena_dir to a folder on tmpfs";
  if (is_limited)
    text += "; this process may lock " + size_text(*lockable) +
            " (RLIMIT_MEMLOCK): raise it with ulimit -l, or a container's with --ulimit memlock=-1";
  if (!is_elsewhere && !is_limited) text += "; dmesg may have the driver's reason";
  return text;
}

}  // namespace ckpt::device
