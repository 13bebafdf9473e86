// AVX-512: a stripe is one register, and one store is a whole cache line. Combining also needs GFNI and AVX512BW.
#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of GCC's own header: _mm512_undefined_epi32 (GCC bug 105593)
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/stripe_loops.hpp"

namespace ckpt::kernels {

namespace {

#define CKPT_TARGET __attribute__((target("avx512f")))
#define CKPT_COMBINE_TARGET __attribute__((target("avx512f,avx512bw,gfni")))

using Lanes = __m512i;
using Stripe = __m512i;

CKPT_TARGET inline Lanes lanes_load(const std::uint64_t* from) { return _mm512_loadu_si512(from); }

CKPT_TARGET inline void lanes_store(std::uint64_t* to, Lanes lanes) { _mm512_storeu_si512(to, lanes); }

CKPT_TARGET inline Stripe stripe_load(const std::byte* from) { return _mm512_loadu_si512(from); }

CKPT_TARGET inline void stripe_store(std::byte* to, Stripe stripe) { _mm512_storeu_si512(to, stripe); }

CKPT_TARGET inline Stripe stripe_xor(Stripe a, Stripe b) { return _mm512_xor_si512(a, b); }

CKPT_TARGET inline void stripe_stream(std::byte* to, Stripe stripe) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), stripe);
}

CKPT_TARGET inline void prefetch(const std::byte* from) {
  const auto ahead = reinterpret_cast<std::uintptr_t>(from) + prefetch_distance_bytes;
  _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
}

CKPT_TARGET inline void accumulate(Lanes& lanes, Stripe stripe, const unsigned char* key) {
  const __m512i keyed = _mm512_xor_si512(stripe, _mm512_loadu_si512(key));
  const __m512i product = _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32));
  const __m512i neighbours = _mm512_shuffle_epi32(stripe, static_cast<_MM_PERM_ENUM>(_MM_SHUFFLE(1, 0, 3, 2)));
  lanes = _mm512_add_epi64(product, _mm512_add_epi64(lanes, neighbours));
}

// AVX512F has no 64-bit multiply. So this multiplies prime32_1 by the low half and by the high half, shifts the second
// product up, and adds both.
CKPT_TARGET inline void scramble(Lanes& lanes) {
  const __m512i prime = _mm512_set1_epi64(prime32_1);
  const __m512i key = _mm512_loadu_si512(secret + scramble_secret_offset);
  const __m512i mixed = _mm512_xor_si512(_mm512_xor_si512(lanes, _mm512_srli_epi64(lanes, 47)), key);
  const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
  lanes = _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(high, 32));
}

struct Multiplier {
  __m512i matrix;
};

CKPT_COMBINE_TARGET inline Multiplier multiplier(const Factor& factor) {
  return {_mm512_set1_epi64(static_cast<long long>(factor.matrix))};
}

CKPT_COMBINE_TARGET inline Stripe stripe_multiply(Stripe stripe, const Multiplier& factor) {
#if defined(__clang__)
  // From registers alone: clang 14 encodes the address wrongly if it broadcasts the matrix from memory.
  Stripe product;
  asm("vgf2p8affineqb $0, %2, %1, %0" : "=v"(product) : "v"(stripe), "v"(factor.matrix));
  return product;
#else
  return _mm512_gf2p8affine_epi64_epi8(stripe, factor.matrix, 0);
#endif
}

constexpr std::size_t sums_in_registers = 8;

#include "kernels/stripe_loops.inl"
// Included here, because it uses the functions above:
#include "kernels/combine_loops.inl"

}  // namespace

const StripeLoops avx512_loops = {digest, digest_and_copy};
const CombineLoop avx512_combine = combine;

}  // namespace ckpt::kernels

#endif
