#include "kernels/digest_body.hpp"
#include "kernels/leaf_hasher.hpp"

namespace ckpt::kernels::device {

namespace {

// Offsets at which XXH3 reads its secret for a leaf of 129 to 240 bytes: for bytes from 128 on, and for the last 16.
constexpr std::size_t odd_offset = 3, tail_offset = 119;

static_assert(sizeof(secret) == 8 * key_words && lanes_per_leaf == 8 && stripes_per_block == block_stripes);

}  // namespace

DigestKeys make_digest_keys() {
  DigestKeys keys;
  const auto fill = [](auto& words, std::size_t offset) {
    for (std::size_t i = 0; i < std::size(words); ++i) words[i] = load_word(secret + offset + 8 * i);
  };
  fill(keys.words, 0);
  fill(keys.last, last_secret_offset);
  fill(keys.merge, merge_secret_offset);
  fill(keys.tail, tail_offset);
  fill(keys.odd, odd_offset);
  return keys;
}

}  // namespace ckpt::kernels::device
