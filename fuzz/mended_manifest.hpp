// Turns any bytes into a manifest whose digests fit, so that a fuzz target gets past the check of digests.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "arena/layout.hpp"
#include "fuzz/fuzz.hpp"
#include "kernels/digest.hpp"

namespace ckpt::fuzz {

// docs/formats.md, "A manifest on the wire".
inline constexpr std::size_t length_at = 24, leader_at = 32, layout_hash_at = 40, layout_bytes_at = 48,
                             shard_bytes_at = 56, head_bytes = 64;

inline std::uint64_t word_at(const std::vector<std::byte>& bytes, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof(word));
  return word;
}
inline void put_word(std::vector<std::byte>& bytes, std::size_t at, std::uint64_t word) {
  std::memcpy(bytes.data() + at, &word, sizeof(word));
}

// With all digests that fit, where the lengths do.
inline std::vector<std::byte> mended(Input input) {
  std::vector<std::byte> bytes(input.begin(), input.end());
  if (bytes.size() < head_bytes) return bytes;
  const std::uint64_t rest = bytes.size() - head_bytes, length = word_at(bytes, length_at),
                      layout_bytes = word_at(bytes, layout_bytes_at), shard_bytes = word_at(bytes, shard_bytes_at);
  const std::uint64_t leaves = kernels::leaf_count(length);
  if (shard_bytes <= rest && layout_bytes <= rest && leaves <= rest / sizeof(std::uint64_t) &&
      shard_bytes + layout_bytes + leaves * sizeof(std::uint64_t) == rest) {
    std::vector<std::uint64_t> digests(leaves);
    const std::byte* const digests_at = bytes.data() + head_bytes + shard_bytes;
    if (leaves != 0) std::memcpy(digests.data(), digests_at, leaves * sizeof(std::uint64_t));
    put_word(bytes, leader_at, kernels::root_digest(digests, length));
    const auto* layout = reinterpret_cast<const char*>(digests_at + leaves * sizeof(std::uint64_t));
    put_word(bytes, layout_hash_at, arena::layout_hash({layout, layout_bytes}));
  }
  put_word(bytes, 0, XXH3_64bits(bytes.data() + sizeof(std::uint64_t), bytes.size() - sizeof(std::uint64_t)));
  return bytes;
}

}  // namespace ckpt::fuzz
