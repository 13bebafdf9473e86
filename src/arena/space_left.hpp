// Computes how much memory the agent can still take for checkpoints. Thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace ckpt::arena {

// The files in which the kernel describes the memory limits of control groups. Tests pass other files.
struct MemoryGroupFiles {
  std::string groups = "/proc/self/cgroup";
  std::string mounts = "/proc/self/mountinfo";
  std::string root = {};  // for tests: a path that is put before every mount point
};

inline constexpr std::uint64_t unlimited_bytes = std::numeric_limits<std::uint64_t>::max();

// Returns how many bytes this process can still take before it exceeds a memory limit of its control group, or of any
// control group above that. Page cache that the kernel can drop counts as free. Supports control groups of version 1
// and 2. Returns unlimited_bytes if there is no limit.
std::uint64_t memory_groups_left_bytes(const MemoryGroupFiles& files = {});

// Returns how many bytes new segments in `directory` may take: the least of what the file system, the machine and the
// memory control groups have left.
std::uint64_t space_left_bytes(const std::string& directory);

}  // namespace ckpt::arena
