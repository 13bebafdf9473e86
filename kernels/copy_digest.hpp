// Copy and digest in one pass over memory: capture gathers tensors into a packed piece, restore scatters a packed piece
// into tensors. Both make, or check, the leaf digests of kernels/digest.hpp on the way.
//
// Thread-safe and without state: split a piece over threads by giving each its own range [first_leaf, last_leaf) of
// leaves. `digests` and `expected` point to the digest of the piece's leaf 0, whatever the range. Nothing is allocated
// and no pointer outlives a call. Packed memory is 64-byte aligned at its start; tensors have any alignment and size,
// and do not overlap the packed memory.
//
// The stores are non-temporal. Each call fences them (sfence) before it returns, so that an ordinary release store
// afterwards publishes the bytes to other threads and processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/digest.hpp"
#include "kernels/isa.hpp"

namespace ckpt::kernels {

// A contiguous run of a tensor's bytes; null only where the size is 0.
struct Source {
  const std::byte* data;
  std::size_t size_bytes;
};
struct Target {
  std::byte* data;
  std::size_t size_bytes;
};

// Where each segment starts in the packed piece, and, as one entry more, the piece's length. Compute it once per
// layout.
std::vector<std::size_t> segment_offsets(std::span<const Source> segments);
std::vector<std::size_t> segment_offsets(std::span<const Target> segments);

// Fills the leaves of the range in the piece at `packed` with the segments' bytes and writes their digests. Writes no
// byte of `packed` outside these leaves.
void gather_leaves(std::span<const Source> segments, std::span<const std::size_t> offsets, std::byte* packed,
                   std::size_t first_leaf, std::size_t last_leaf, std::uint64_t* digests, Isa isa = best_isa());

// Copies the leaves of the range out into the segments and compares their digests with the expected ones. Stops at the
// first leaf that differs and returns its number: it and the leaves of the range before it are written, those after it
// are not. The caller takes the bad leaf from elsewhere and goes on from there, or treats the targets as torn; who must
// not touch them before all is known to be good calls verify_leaves() first, at the price of one more pass.
[[nodiscard]] std::optional<std::size_t> scatter_leaves(std::span<const Target> segments,
                                                        std::span<const std::size_t> offsets, const std::byte* packed,
                                                        std::size_t first_leaf, std::size_t last_leaf,
                                                        const std::uint64_t* expected, Isa isa = best_isa());

// The first leaf of the range whose digest differs, if any.
[[nodiscard]] std::optional<std::size_t> verify_leaves(const std::byte* packed, std::size_t length_bytes,
                                                       std::size_t first_leaf, std::size_t last_leaf,
                                                       const std::uint64_t* expected, Isa isa = best_isa());

}  // namespace ckpt::kernels
