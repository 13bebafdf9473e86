// Makes pieces for benches that move them: memory like an arena's, bytes to fill it, and manifests.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "arena/layout.hpp"
#include "arena/segment.hpp"
#include "base/clock.hpp"
#include "kernels/digest.hpp"

namespace ckpt::bench {

constexpr unsigned digest_threads = 2;  // as in ckptd

// Makes a segment with one slot. It is in tmpfs, like an arena's. Its file has no name, so nothing is left if the bench
// is killed.
inline std::shared_ptr<arena::Segment> nameless_segment(const std::string& shard, std::size_t bytes,
                                                        std::size_t layout_bytes = 0) {
  const std::string path = "/dev/shm/ckptengine-bench-" + std::to_string(::getpid());
  const arena::SegmentSpec spec{
      arena::SegmentKind::local, 0, 1, shard, bytes, arena::manifest_bytes(bytes, layout_bytes)};
  auto segment = std::make_shared<arena::Segment>(arena::Segment::create(path, spec, 2));
  ::unlink(path.c_str());
  return segment;
}

inline void fill(std::byte* data, std::size_t size_bytes, std::uint64_t seed = 0) {
  std::uint64_t state = 88172645463325252ull + seed;
  for (std::size_t i = 0; i + 8 <= size_bytes; i += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(data + i, &state, 8);
  }
}

inline arena::Manifest manifest_of(const std::string& shard, CheckpointId checkpoint, const std::byte* data,
                                   std::size_t size_bytes, std::uint32_t world_size = 1) {
  arena::Manifest manifest;
  manifest.shard = shard;
  manifest.checkpoint = checkpoint;
  manifest.length_bytes = size_bytes;
  manifest.world_size = world_size;
  manifest.layout_hash = arena::layout_hash(manifest.layout);
  manifest.leaves.resize(kernels::leaf_count(size_bytes));
  kernels::digest_leaves(data, size_bytes, manifest.leaves.data());
  manifest.root_digest = kernels::root_digest(manifest.leaves, size_bytes);
  return manifest;
}

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace ckpt::bench
