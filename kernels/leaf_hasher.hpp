// LeafHasher computes XXH3-64 of one leaf. It takes the leaf in stripes of 64 bytes, so a loop that copies bytes can
// digest them in the same pass. Internal to kernels/.
//
// Leaves above 240 bytes use XXH3's long form. Eight 64-bit accumulators take stripes of 64 bytes. Each stripe is keyed
// with the secret, at an offset 8 bytes above that of the stripe before. After each block of 16 stripes, the
// accumulators are scrambled, and the offset is 0 again. The last stripe is the leaf's last 64 bytes. It may overlap
// the stripe before it, and has an offset of its own. Then the accumulators are merged. Shorter leaves go to the xxHash
// library.
//
// The loops over whole stripes take nearly all the time. Each instruction set has its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/isa.hpp"

namespace ckpt::kernels {

inline constexpr std::size_t stripe_size_bytes = 64;
inline constexpr std::size_t block_stripes = 16;
inline constexpr std::size_t short_leaf_max_bytes = 240;

inline constexpr std::uint32_t prime32_1 = 0x9E3779B1U;
inline constexpr std::uint32_t prime32_2 = 0x85EBCA77U;
inline constexpr std::uint32_t prime32_3 = 0xC2B2AE3DU;
inline constexpr std::uint64_t prime64_1 = 0x9E3779B185EBCA87U;
inline constexpr std::uint64_t prime64_2 = 0xC2B2AE3D27D4EB4FU;
inline constexpr std::uint64_t prime64_3 = 0x165667B19E3779F9U;
inline constexpr std::uint64_t prime64_4 = 0x85EBCA77C2B2AE63U;
inline constexpr std::uint64_t prime64_5 = 0x27D4EB2F165667C5U;

// Offsets into the default secret, in bytes. Stripe n of a block uses offset 8 n.
inline constexpr std::size_t scramble_secret_offset = 128;
inline constexpr std::size_t last_secret_offset = 121;
inline constexpr std::size_t merge_secret_offset = 11;

alignas(64) inline constexpr unsigned char secret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

// How many stripes a leaf above 240 bytes has before its last stripe.
constexpr std::size_t whole_stripes(std::size_t size_bytes) { return (size_bytes - 1) / stripe_size_bytes; }

// The loops of one instruction set. Pointers to bytes may have any alignment, except `destination`. Streaming stores go
// past the caches and are weakly ordered: call streaming_fence() before another thread is told of the bytes.
struct StripeLoops {
  // Feeds `count` stripes at `source` to the accumulators. The first one is stripe number `first` of its leaf.
  void (*digest)(std::uint64_t* accumulators, std::size_t first, const std::byte* source, std::size_t count);
  // Does the same, and also streams `count` lines of 64 bytes from `copied` to `destination`, which must be 64-byte
  // aligned. `copied` is `source`, or so near to it that the bytes are in the cache when the loop reaches them.
  void (*digest_and_copy)(std::uint64_t* accumulators, std::size_t first, const std::byte* source,
                          const std::byte* copied, std::byte* destination, std::size_t count);
};

// The loops of `isa`, which must be supported.
const StripeLoops& stripe_loops(Isa isa);

// Orders all streaming stores of this thread before its later stores.
void streaming_fence();

// Returns the digest of a leaf of at most short_leaf_max_bytes bytes.
std::uint64_t short_leaf_digest(const std::byte* data, std::size_t size_bytes);

struct LeafHasher {
  alignas(64) std::uint64_t accumulators[8] = {prime32_3, prime64_1, prime64_2, prime64_3,
                                               prime64_4, prime32_2, prime64_5, prime32_1};

  // Returns the digest of a leaf of `size_bytes` bytes. Call this when whole_stripes(size_bytes) stripes were fed to
  // the accumulators. `last_stripe`: the leaf's last 64 bytes.
  std::uint64_t finish(const std::byte* last_stripe, std::size_t size_bytes);
};

inline std::uint64_t load_word(const void* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// Feeds one stripe to the accumulators, in plain C++. `key`: the bytes of the secret for this stripe.
inline void accumulate_words(std::uint64_t* accumulators, const std::byte* stripe, const unsigned char* key) {
  for (std::size_t i = 0; i < 8; ++i) {
    const std::uint64_t word = load_word(stripe + 8 * i);
    const std::uint64_t keyed = word ^ load_word(key + 8 * i);
    accumulators[i ^ 1] += word;
    accumulators[i] += (keyed & 0xFFFFFFFFU) * (keyed >> 32);
  }
}

}  // namespace ckpt::kernels
