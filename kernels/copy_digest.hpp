// Copies a piece and computes or checks its leaf digests in one pass over memory. A capture gathers tensors into a
// packed piece. A restore scatters a packed piece into tensors. The digests are those of kernels/digest.hpp.
//
// Thread-safe and without state. To split a piece over threads, give each thread its own range [first_leaf, last_leaf)
// of leaves. `digests` and `expected` always point to the digest of the piece's leaf 0. Nothing is allocated, and no
// pointer is kept. Packed memory begins 64-byte aligned. Tensors have any alignment and size, and do not overlap the
// packed memory.
//
// The stores go past the caches (non-temporal), and each call fences them before it returns. So an ordinary release
// store afterwards publishes the bytes to other threads and processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/digest.hpp"
#include "kernels/isa.hpp"

namespace ckpt::kernels {

// A contiguous run of a tensor's bytes. `data` is null only if the size is 0.
struct Source {
  const std::byte* data;
  std::size_t size_bytes;
};
struct Target {
  std::byte* data;
  std::size_t size_bytes;
};

// Returns where each segment starts in the packed piece, and after these the piece's length. Compute it once per
// layout.
std::vector<std::size_t> segment_offsets(std::span<const Source> segments);
std::vector<std::size_t> segment_offsets(std::span<const Target> segments);

// Fills the range's leaves of the piece at `packed` with the segments' bytes, and writes their digests. Writes no byte
// of `packed` outside these leaves.
void gather_leaves(std::span<const Source> segments, std::span<const std::size_t> offsets, std::byte* packed,
                   std::size_t first_leaf, std::size_t last_leaf, std::uint64_t* digests, Isa isa = best_isa());

// Copies the range's leaves into the segments and compares their digests with the expected ones. Stops at the first
// leaf that differs and returns its number. That leaf and those of the range before it are then written; those after it
// are not. The caller takes the bad leaf from elsewhere and continues from there, or treats the targets as torn. A
// caller that must not touch the targets before all leaves are known to be good calls verify_leaves() first, which
// costs one more pass.
[[nodiscard]] std::optional<std::size_t> scatter_leaves(std::span<const Target> segments,
                                                        std::span<const std::size_t> offsets, const std::byte* packed,
                                                        std::size_t first_leaf, std::size_t last_leaf,
                                                        const std::uint64_t* expected, Isa isa = best_isa());

// Returns the first leaf of the range whose digest differs, if any.
[[nodiscard]] std::optional<std::size_t> verify_leaves(const std::byte* packed, std::size_t length_bytes,
                                                       std::size_t first_leaf, std::size_t last_leaf,
                                                       const std::uint64_t* expected, Isa isa = best_isa());

}  // namespace ckpt::kernels
