// The steps by which GPU threads digest leaves (kernels/digest.hpp). kernels/pack_body.hpp uses them. The code also
// compiles for the host, so tests need no GPU. Internal to kernels/.
//
// A stripe, here 64 bytes, is eight 8-byte words. The number of such a word in its stripe is its lane. XXH3 has one
// accumulator for each lane, and merges all eight at the end. For leaves of at most 240 bytes, XXH3 has other formulas.
// One thread computes these alone.
#pragma once

#include "kernels/digest.hpp"
#include "kernels/parity_body.hpp"

namespace ckpt::kernels::device {

inline constexpr unsigned lanes_per_leaf = 8;
inline constexpr unsigned stripes_per_block = 16;
inline constexpr unsigned key_words = 24;

// Words of XXH3's default secret, arranged as the GPU kernel reads them.
struct DigestKeys {
  std::uint64_t words[key_words];       // the secret, as words
  std::uint64_t last[lanes_per_leaf];   // words of the secret for a leaf's last stripe
  std::uint64_t merge[lanes_per_leaf];  // words of the secret to merge the accumulators
  // Words of the secret for a leaf of 129 to 240 bytes.
  std::uint64_t tail[2];  // for its last 16 bytes
  std::uint64_t odd[16];  // for its other bytes from 128 on
};

DigestKeys make_digest_keys();

inline constexpr std::uint64_t xxh_prime32_1 = 0x9E3779B1U, xxh_prime32_2 = 0x85EBCA77U, xxh_prime32_3 = 0xC2B2AE3DU;
inline constexpr std::uint64_t xxh_prime64_1 = 0x9E3779B185EBCA87U, xxh_prime64_2 = 0xC2B2AE3D27D4EB4FU,
                               xxh_prime64_3 = 0x165667B19E3779F9U, xxh_prime64_4 = 0x85EBCA77C2B2AE63U,
                               xxh_prime64_5 = 0x27D4EB2F165667C5U;

CKPT_ON_DEVICE std::uint64_t first_accumulator(unsigned lane) {
  switch (lane) {
    case 0:
      return xxh_prime32_3;
    case 1:
      return xxh_prime64_1;
    case 2:
      return xxh_prime64_2;
    case 3:
      return xxh_prime64_3;
    case 4:
      return xxh_prime64_4;
    case 5:
      return xxh_prime32_2;
    case 6:
      return xxh_prime64_5;
    default:
      return xxh_prime32_1;
  }
}

CKPT_ON_DEVICE std::uint64_t multiply_folded(std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH__)
  return (a * b) ^ __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
#endif
}

CKPT_ON_DEVICE std::uint64_t avalanched(std::uint64_t hash) {
  hash ^= hash >> 37;
  hash *= 0x165667919E3779F9U;
  return hash ^ hash >> 32;
}

CKPT_ON_DEVICE std::uint64_t low_of(const Vector& vector) { return wide(vector.words[0], vector.words[1]); }
CKPT_ON_DEVICE std::uint64_t high_of(const Vector& vector) { return wide(vector.words[2], vector.words[3]); }

// Adds one stripe to the accumulator of a lane, which was `sum` before, and returns the new value. `pair` has the words
// of the lane and of its neighbour.
CKPT_ON_DEVICE std::uint64_t accumulated(std::uint64_t sum, const Vector& pair, unsigned lane, std::uint64_t key) {
  const bool second = (lane & 1) != 0;
  const std::uint64_t own = second ? high_of(pair) : low_of(pair);
  const std::uint64_t neighbour = second ? low_of(pair) : high_of(pair);
  const std::uint64_t keyed = own ^ key;
  return sum + neighbour + (keyed & 0xFFFFFFFFU) * (keyed >> 32);
}

CKPT_ON_DEVICE std::uint64_t scrambled(std::uint64_t sum, std::uint64_t key) {
  return (sum ^ sum >> 47 ^ key) * xxh_prime32_1;
}

CKPT_ON_DEVICE std::uint64_t merge_lanes(const DigestKeys& keys, const std::uint64_t* sums, std::uint64_t size_bytes) {
  std::uint64_t hash = size_bytes * xxh_prime64_1;
  for (unsigned i = 0; i < lanes_per_leaf; i += 2) {
    hash += multiply_folded(sums[i] ^ keys.merge[i], sums[i + 1] ^ keys.merge[i + 1]);
  }
  return avalanched(hash);
}

CKPT_ON_DEVICE std::uint64_t rotated(std::uint64_t value, unsigned by) { return value << by | value >> (64 - by); }

CKPT_ON_DEVICE std::uint64_t bytes_swapped(std::uint64_t value) {
  value = (value & 0x00FF00FF00FF00FFU) << 8 | (value >> 8 & 0x00FF00FF00FF00FFU);
  value = (value & 0x0000FFFF0000FFFFU) << 16 | (value >> 16 & 0x0000FFFF0000FFFFU);
  return value << 32 | value >> 32;
}

// Computes the digest of a leaf of 1 to 240 bytes. XXH3 has a formula for each range of lengths.
struct ShortLeaf {
  const DigestKeys& keys;
  const unsigned char* data;
  std::int64_t size;

  // Reads `count` <= 8 bytes as a little-endian word.
  CKPT_ON_DEVICE std::uint64_t read(std::int64_t at, int count) const {
    std::uint64_t word = 0;
    for (int i = 0; i < count; ++i) word |= static_cast<std::uint64_t>(data[at + i]) << (8 * i);
    return word;
  }
  CKPT_ON_DEVICE std::uint64_t mixed(std::int64_t at, std::uint64_t first, std::uint64_t second) const {
    return multiply_folded(read(at, 8) ^ first, read(at + 8, 8) ^ second);
  }
  CKPT_ON_DEVICE std::uint64_t mixed(std::int64_t at, unsigned word) const {
    return mixed(at, keys.words[word], keys.words[word + 1]);
  }

  CKPT_ON_DEVICE std::uint64_t up_to_3() const {
    const std::uint64_t bytes =
        read(0, 1) << 16 | read(size / 2, 1) << 24 | read(size - 1, 1) | static_cast<std::uint64_t>(size) << 8;
    std::uint64_t hash = bytes ^ ((keys.words[0] ^ keys.words[0] >> 32) & 0xFFFFFFFFU);
    hash = (hash ^ hash >> 33) * xxh_prime64_2;
    hash = (hash ^ hash >> 29) * xxh_prime64_3;
    return hash ^ hash >> 32;
  }
  CKPT_ON_DEVICE std::uint64_t up_to_8() const {
    std::uint64_t hash = (read(size - 4, 4) | read(0, 4) << 32) ^ keys.words[1] ^ keys.words[2];
    hash ^= rotated(hash, 49) ^ rotated(hash, 24);
    hash *= 0x9FB21C651E98DF25U;
    hash ^= (hash >> 35) + static_cast<std::uint64_t>(size);
    hash *= 0x9FB21C651E98DF25U;
    return hash ^ hash >> 28;
  }
  CKPT_ON_DEVICE std::uint64_t up_to_16() const {
    const std::uint64_t low = read(0, 8) ^ keys.words[3] ^ keys.words[4];
    const std::uint64_t high = read(size - 8, 8) ^ keys.words[5] ^ keys.words[6];
    return avalanched(static_cast<std::uint64_t>(size) + bytes_swapped(low) + high + multiply_folded(low, high));
  }
  // Each round mixes in 16 bytes before and 16 bytes after the middle of the leaf, from the middle outwards.
  CKPT_ON_DEVICE std::uint64_t up_to_128() const {
    std::uint64_t hash = static_cast<std::uint64_t>(size) * xxh_prime64_1;
    for (int i = static_cast<int>((size - 1) / 32); i >= 0; --i) {
      hash += mixed(16 * i, static_cast<unsigned>(4 * i));
      hash += mixed(size - 16 * (i + 1), static_cast<unsigned>(4 * i + 2));
    }
    return avalanched(hash);
  }
  CKPT_ON_DEVICE std::uint64_t up_to_240() const {
    std::uint64_t hash = static_cast<std::uint64_t>(size) * xxh_prime64_1;
    for (int i = 0; i < 8; ++i) hash += mixed(16 * i, static_cast<unsigned>(2 * i));
    hash = avalanched(hash);
    for (int i = 8; i < size / 16; ++i) hash += mixed(16 * i, keys.odd[2 * (i - 8)], keys.odd[2 * (i - 8) + 1]);
    return avalanched(hash + mixed(size - 16, keys.tail[0], keys.tail[1]));
  }
  CKPT_ON_DEVICE std::uint64_t digest() const {
    if (size <= 3) return up_to_3();
    if (size <= 8) return up_to_8();
    if (size <= 16) return up_to_16();
    return size <= 128 ? up_to_128() : up_to_240();
  }
};

}  // namespace ckpt::kernels::device
