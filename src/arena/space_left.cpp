#include "arena/space_left.hpp"

#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "base/error.hpp"

namespace ckpt::arena {
namespace {

// The names of the files in one hierarchy of memory groups.
struct Names {
  const char* limit;
  const char* used;
  const char* droppable;  // the entry in memory.stat for page cache that is not in use
};
constexpr Names version_1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Names version_2{"memory.max", "memory.current", "inactive_file"};

struct Mount {
  std::string root;   // the control group at the top of the mount
  std::string point;  // the mount point
};

bool has_word(const std::string& list, std::string_view word) {
  std::istringstream stream(list);
  for (std::string each; std::getline(stream, each, ',');)
    if (each == word) return true;
  return false;
}

// Decodes the octal numbers as which the kernel writes blanks and backslashes.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_octal = text[i] == '\\' && i + 3 < text.size() && text.find_first_not_of("01234567", i + 1) >= i + 4;
    plain += is_octal ? static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8)) : text[i];
    if (is_octal) i += 3;
  }
  return plain;
}

// The path of the process's control group for memory, from a line "0::/path" (version 2) or "N:memory,...:/path"
// (version 1).
std::optional<std::string> group_path(const MemoryGroupFiles& files, const Names& names) {
  std::ifstream file(files.groups);
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_it = &names == &version_2 ? controllers.empty() : has_word(controllers, "memory");
    if (is_it) return line.substr(second + 1);
  }
  return std::nullopt;
}

std::vector<Mount> mounts(const MemoryGroupFiles& files, const Names& names) {
  std::vector<Mount> found;
  std::ifstream file(files.mounts);
  for (std::string line; std::getline(file, line);) {
    const auto dash = line.find(" - ");
    if (dash == line.npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string skipped, root, point, type, source, options;
    before >> skipped >> skipped >> skipped >> root >> point;
    after >> type >> source >> options;
    const bool is_it = &names == &version_2 ? type == "cgroup2" : type == "cgroup" && has_word(options, "memory");
    if (is_it) found.push_back({unescaped(root), unescaped(point)});
  }
  return found;
}

// The folder of the process's group, relative to the mount point. "", which is the top of the mount, if the group is
// not visible in this mount.
std::string below(const Mount& mount, const std::string& group) {
  const std::string top = mount.root == "/" ? "" : mount.root;
  if (group.find("/..") != group.npos || !group.starts_with(top)) return "";
  const std::string rest = group.substr(top.size());
  return rest == "/" || (!rest.empty() && rest.front() != '/') ? "" : rest;
}

std::uint64_t droppable_bytes(const std::string& folder, const Names& names) {
  std::ifstream file(folder + "/memory.stat");
  std::string name;
  for (std::uint64_t bytes = 0; file >> name >> bytes;)
    if (name == names.droppable) return bytes;
  return 0;
}

// What the group in this folder has left. unlimited_bytes if its limit is "max", or if it has no such file, as the root
// group.
std::uint64_t left_bytes(const std::string& folder, const Names& names) {
  std::ifstream limit_file(folder + "/" + names.limit), used_file(folder + "/" + names.used);
  std::uint64_t limit = 0, used = 0;
  if (!(limit_file >> limit) || !(used_file >> used)) return unlimited_bytes;
  used -= std::min(used, droppable_bytes(folder, names));
  return limit > used ? limit - used : 0;
}

std::uint64_t left_bytes(const MemoryGroupFiles& files, const Names& names) {
  const auto group = group_path(files, names);
  if (!group) return unlimited_bytes;
  std::uint64_t least = unlimited_bytes;
  for (const Mount& mount : mounts(files, names)) {
    const std::string top = files.root + mount.point;
    std::string folder = below(mount, *group);
    for (;; folder.resize(folder.rfind('/'))) {
      least = std::min(least, left_bytes(top + folder, names));
      if (folder.empty()) break;
    }
  }
  return least;
}

std::uint64_t machine_left_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("MemAvailable:")) return std::stoull(line.substr(13)) * 1024;
  return unlimited_bytes;
}

}  // namespace

std::uint64_t memory_groups_left_bytes(const MemoryGroupFiles& files) {
  return std::min(left_bytes(files, version_1), left_bytes(files, version_2));
}

std::uint64_t space_left_bytes(const std::string& directory) {
  struct statvfs file_system {};
  if (::statvfs(directory.c_str(), &file_system) != 0)
    throw_errno(CKPT_ERR_SYSTEM, "cannot find out how much space is left in " + directory);
  const std::uint64_t free_bytes = std::uint64_t{file_system.f_bavail} * file_system.f_frsize;
  return std::min({free_bytes, machine_left_bytes(), memory_groups_left_bytes()});
}

}  // namespace ckpt::arena
