// What the memory control groups of this process still allow. Free function; thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace ckpt::arena {

// Where the kernel tells of control groups; tests have files of their own.
struct MemoryGroupFiles {
  std::string groups = "/proc/self/cgroup";
  std::string mounts = "/proc/self/mountinfo";
  std::string root = {};  // before every mount point
};

inline constexpr std::uint64_t unlimited_bytes = std::numeric_limits<std::uint64_t>::max();

// Of the group that this process is in, and of all above it up to the root of the mount: what the tightest has left. A
// group counts as used what the kernel cannot simply drop. Version 1 and 2; unlimited_bytes where no limit is seen.
std::uint64_t memory_groups_left_bytes(const MemoryGroupFiles& files = {});

}  // namespace ckpt::arena
