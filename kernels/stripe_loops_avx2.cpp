// AVX2: a stripe is two registers.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/stripe_loops.hpp"

namespace ckpt::kernels {

namespace {

#define CKPT_TARGET __attribute__((target("avx2")))
#define CKPT_COMBINE_TARGET CKPT_TARGET

struct Pair {
  __m256i low, high;
};
using Lanes = Pair;
using Stripe = Pair;

CKPT_TARGET inline Pair load_pair(const void* from) {
  const auto* words = static_cast<const __m256i*>(from);
  return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}

CKPT_TARGET inline Lanes lanes_load(const std::uint64_t* from) { return load_pair(from); }

CKPT_TARGET inline void lanes_store(std::uint64_t* to, Lanes lanes) {
  auto* words = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(words, lanes.low);
  _mm256_storeu_si256(words + 1, lanes.high);
}

CKPT_TARGET inline Stripe stripe_load(const std::byte* from) { return load_pair(from); }

CKPT_TARGET inline void stripe_store(std::byte* to, Stripe stripe) {
  auto* words = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(words, stripe.low);
  _mm256_storeu_si256(words + 1, stripe.high);
}

CKPT_TARGET inline Stripe stripe_xor(Stripe a, Stripe b) {
  return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}

CKPT_TARGET inline void stripe_stream(std::byte* to, Stripe stripe) {
  auto* words = reinterpret_cast<__m256i*>(to);
  _mm256_stream_si256(words, stripe.low);
  _mm256_stream_si256(words + 1, stripe.high);
}

CKPT_TARGET inline void prefetch(const std::byte* from) {
  const auto ahead = reinterpret_cast<std::uintptr_t>(from) + prefetch_distance_bytes;
  _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
}

CKPT_TARGET inline __m256i accumulate_half(__m256i lanes, __m256i words, __m256i key) {
  const __m256i keyed = _mm256_xor_si256(words, key);
  const __m256i product = _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32));
  const __m256i neighbours = _mm256_shuffle_epi32(words, _MM_SHUFFLE(1, 0, 3, 2));
  return _mm256_add_epi64(product, _mm256_add_epi64(lanes, neighbours));
}

CKPT_TARGET inline void accumulate(Lanes& lanes, Stripe stripe, const unsigned char* key) {
  const Pair keys = load_pair(key);
  lanes.low = accumulate_half(lanes.low, stripe.low, keys.low);
  lanes.high = accumulate_half(lanes.high, stripe.high, keys.high);
}

// AVX2 has no 64-bit multiply. So this multiplies prime32_1 by the low half and by the high half, shifts the second
// product up, and adds both.
CKPT_TARGET inline __m256i scramble_half(__m256i lanes, __m256i key) {
  const __m256i prime = _mm256_set1_epi64x(prime32_1);
  const __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47)), key);
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
  return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(high, 32));
}

CKPT_TARGET inline void scramble(Lanes& lanes) {
  const Pair keys = load_pair(secret + scramble_secret_offset);
  lanes.low = scramble_half(lanes.low, keys.low);
  lanes.high = scramble_half(lanes.high, keys.high);
}

// The product of each half of a byte is looked up in a register.
struct Multiplier {
  __m256i low, high;
};

CKPT_TARGET inline __m256i twice(const std::uint8_t* table) {
  return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
}

CKPT_TARGET inline Multiplier multiplier(const Factor& factor) { return {twice(factor.low), twice(factor.high)}; }

CKPT_TARGET inline __m256i multiply_half(__m256i bytes, const Multiplier& factor) {
  const __m256i nibble = _mm256_set1_epi8(0x0F);
  const __m256i low = _mm256_shuffle_epi8(factor.low, _mm256_and_si256(bytes, nibble));
  const __m256i high = _mm256_shuffle_epi8(factor.high, _mm256_and_si256(_mm256_srli_epi64(bytes, 4), nibble));
  return _mm256_xor_si256(low, high);
}

CKPT_TARGET inline Stripe stripe_multiply(Stripe stripe, const Multiplier& factor) {
  return {multiply_half(stripe.low, factor), multiply_half(stripe.high, factor)};
}

constexpr std::size_t sums_in_registers = 4;

#include "kernels/stripe_loops.inl"
// Included here, because it uses the functions above:
#include "kernels/combine_loops.inl"

}  // namespace

const StripeLoops avx2_loops = {digest, digest_and_copy};
const CombineLoop avx2_combine = combine;

}  // namespace ckpt::kernels

#endif
