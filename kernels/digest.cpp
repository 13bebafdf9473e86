#include "kernels/digest.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>

#include "kernels/leaf_hasher.hpp"

namespace ckpt::kernels {

static_assert(std::endian::native == std::endian::little, "digests are specified over little-endian words");

std::uint64_t short_leaf_digest(const std::byte* data, std::size_t size_bytes) { return XXH3_64bits(data, size_bytes); }

std::uint64_t leaf_digest(const void* data, std::size_t size_bytes, Isa isa) {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (size_bytes <= short_leaf_max_bytes) return short_leaf_digest(bytes, size_bytes);
  LeafHasher hasher;
  const std::size_t stripes = whole_stripes(size_bytes);
  stripe_loops(isa).digest(hasher.accumulators, 0, bytes, stripes);
  return hasher.finish(bytes + size_bytes - stripe_size_bytes, size_bytes);
}

void digest_leaves(const void* data, std::size_t length_bytes, std::uint64_t* digests, Isa isa) {
  const auto* bytes = static_cast<const std::byte*>(data);
  for (std::size_t leaf = 0; leaf < leaf_count(length_bytes); ++leaf) {
    digests[leaf] = leaf_digest(bytes + leaf * leaf_size_bytes, leaf_length(length_bytes, leaf), isa);
  }
}

std::uint64_t root_digest(std::span<const std::uint64_t> leaves, std::size_t length_bytes) {
  const std::uint64_t length = length_bytes;
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset(&state);
  if (!leaves.empty()) XXH3_64bits_update(&state, leaves.data(), leaves.size_bytes());
  XXH3_64bits_update(&state, &length, sizeof length);
  return XXH3_64bits_digest(&state);
}

}  // namespace ckpt::kernels
