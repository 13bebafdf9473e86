// Computes the digests of a piece. A piece is cut into leaves of leaf_size_bytes; the last may be shorter, and an empty
// piece has no leaf. All digests are XXH3-64 with seed 0 and the default secret:
//
//   leaf digest = XXH3_64bits(the leaf's bytes)
//   root digest = XXH3_64bits(leaf digests in order, 8 bytes little-endian each; then the piece's length in bytes,
//                             8 bytes little-endian)
//
// So the root digest of an empty piece is XXH3_64bits of eight zero bytes. Any range of leaves can be checked without
// the rest of the piece. CPUs and GPUs compute the same digests, in any order and in parallel.
//
// Pure, thread-safe functions, which allocate nothing and keep no pointer. `data` may have any alignment, and may be
// null if the size is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/isa.hpp"

namespace ckpt::kernels {

inline constexpr std::size_t leaf_size_bytes = std::size_t{64} << 10;

constexpr std::size_t leaf_count(std::size_t length_bytes) {
  return length_bytes / leaf_size_bytes + (length_bytes % leaf_size_bytes != 0);
}

// The length in bytes of leaf number `leaf` of a piece of `length_bytes`. `leaf` must be below
// leaf_count(length_bytes).
constexpr std::size_t leaf_length(std::size_t length_bytes, std::size_t leaf) {
  const std::size_t rest = length_bytes - leaf * leaf_size_bytes;
  return rest < leaf_size_bytes ? rest : leaf_size_bytes;
}

std::uint64_t leaf_digest(const void* data, std::size_t size_bytes, Isa isa = best_isa());

// Writes leaf_count(length_bytes) digests to `digests`.
void digest_leaves(const void* data, std::size_t length_bytes, std::uint64_t* digests, Isa isa = best_isa());

// `leaves`: all leaf digests in order. `length_bytes`: the piece's length.
std::uint64_t root_digest(std::span<const std::uint64_t> leaves, std::size_t length_bytes);

}  // namespace ckpt::kernels
