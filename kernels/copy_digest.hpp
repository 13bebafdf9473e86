// Copies a piece and computes or checks its leaf digests in one pass over memory. A capture gathers tensors into a
// packed piece. A restore scatters a packed piece into tensors. In kernels/, a segment is a range of a piece whose
// bytes lie one after the other in one tensor. The digests are those of kernels/digest.hpp.
//
// Thread-safe and without state. To split a piece over threads, give each thread its own range [first_leaf, last_leaf)
// of leaves. `digests` and `expected` still point to the digest of the piece's leaf 0. The functions that take leaves
// allocate nothing. No function keeps a pointer. Packed memory must begin 64-byte aligned. Tensors may have any
// alignment and size. They must not overlap the packed memory.
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

// A segment to read (Source) or to write (Target). `data` may be null only if the size is 0.
struct Source {
  const std::byte* data;
  std::size_t size_bytes;
};
struct Target {
  std::byte* data;
  std::size_t size_bytes;
};

// Returns where each segment starts in the packed piece, in bytes. The last element is the piece's length. Call this
// once per layout: the result is the argument `offsets` of the functions below.
std::vector<std::size_t> segment_offsets(std::span<const Source> segments);
std::vector<std::size_t> segment_offsets(std::span<const Target> segments);

// Fills the leaves [first_leaf, last_leaf) of the piece at `packed` with the segments' bytes, and writes the leaves'
// digests. Changes no byte of `packed` outside these leaves.
void gather_leaves(std::span<const Source> segments, std::span<const std::size_t> offsets, std::byte* packed,
                   std::size_t first_leaf, std::size_t last_leaf, std::uint64_t* digests, Isa isa = best_isa());

// Copies the leaves [first_leaf, last_leaf) of the piece at `packed` into the segments, and compares their digests with
// the expected ones. Returns nothing if all digests match. Otherwise stops at the first leaf that differs, and returns
// its number. The segments then have the bytes of that leaf and of the leaves before it in the range. The caller gets
// the bad leaf from elsewhere and continues after it, or must not use the segments. Call verify_leaves() first if the
// segments must not change before all leaves are known to be good. That costs one more pass.
[[nodiscard]] std::optional<std::size_t> scatter_leaves(std::span<const Target> segments,
                                                        std::span<const std::size_t> offsets, const std::byte* packed,
                                                        std::size_t first_leaf, std::size_t last_leaf,
                                                        const std::uint64_t* expected, Isa isa = best_isa());

// Checks the leaves [first_leaf, last_leaf) of the piece at `packed`, which has `length_bytes` bytes. Returns the
// number of the first leaf whose digest differs from the expected one, or nothing if all match.
[[nodiscard]] std::optional<std::size_t> verify_leaves(const std::byte* packed, std::size_t length_bytes,
                                                       std::size_t first_leaf, std::size_t last_leaf,
                                                       const std::uint64_t* expected, Isa isa = best_isa());

// Does what verify_leaves() does, for a piece whose bytes are in these segments instead of packed memory. Copies
// nothing.
[[nodiscard]] std::optional<std::size_t> verify_segments(std::span<const Source> segments,
                                                         std::span<const std::size_t> offsets, std::size_t first_leaf,
                                                         std::size_t last_leaf, const std::uint64_t* expected,
                                                         Isa isa = best_isa());

}  // namespace ckpt::kernels
