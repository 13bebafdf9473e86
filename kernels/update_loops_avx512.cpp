// AVX-512: sixteen elements at a time.
#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of GCC's own header: _mm512_undefined_epi32 (GCC bug 105593)
#endif
#include <immintrin.h>

#include <algorithm>

#include "kernels/update_loops.hpp"

namespace ckpt::kernels {

namespace {

#define CKPT_TARGET __attribute__((target("avx512f")))

using Floats = __m512;
constexpr std::size_t lanes = 16;

CKPT_TARGET inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
CKPT_TARGET inline Floats load(const Bfloat16* from) {
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
CKPT_TARGET inline void store(float* to, Floats value) { _mm512_storeu_ps(to, value); }
CKPT_TARGET inline Floats splat(float value) { return _mm512_set1_ps(value); }
CKPT_TARGET inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
CKPT_TARGET inline Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
CKPT_TARGET inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
CKPT_TARGET inline Floats divide(Floats a, Floats b) { return _mm512_div_ps(a, b); }
CKPT_TARGET inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
CKPT_TARGET inline Floats root(Floats value) { return _mm512_sqrt_ps(value); }
CKPT_TARGET inline Floats negate(Floats value) {
  return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(value), _mm512_set1_epi32(INT32_MIN)));
}
CKPT_TARGET inline Floats larger(Floats a, Floats b) {
  const __m512i larger = _mm512_castps_si512(_mm512_max_ps(a, b));
  const __mmask16 unordered = _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
  return _mm512_castsi512_ps(_mm512_mask_set1_epi32(larger, unordered, -1));
}
CKPT_TARGET inline Floats larger_or_first(Floats a, Floats b) { return _mm512_max_ps(b, a); }

#include "kernels/update_loops.inl"

}  // namespace

const UpdateLoops avx512_update = these_loops;

}  // namespace ckpt::kernels

#endif
