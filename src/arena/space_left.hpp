// Computes how much memory the agent can still take for checkpoints. Thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace ckpt::arena {

// The files in which the kernel describes memory limits (control groups). Tests pass their own.
struct MemoryGroupFiles {
  std::string groups = "/proc/self/cgroup";
  std::string mounts = "/proc/self/mountinfo";
  std::string root = {};  // prefix of every mount point
};

inline constexpr std::uint64_t unlimited_bytes = std::numeric_limits<std::uint64_t>::max();

// Returns how much the tightest memory limit leaves. It looks at this process's group and all groups above it up to the
// root of the mount. Memory that the kernel can simply drop counts as free. Supports versions 1 and 2. Returns
// unlimited_bytes if it sees no limit.
std::uint64_t memory_groups_left_bytes(const MemoryGroupFiles& files = {});

// Returns how many bytes new segments in `directory` may take: the least of what the file system, the machine and the
// memory control groups have left.
std::uint64_t space_left_bytes(const std::string& directory);

}  // namespace ckpt::arena
