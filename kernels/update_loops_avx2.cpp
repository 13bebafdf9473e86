// AVX2 and FMA: eight elements at a time.
#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#include "kernels/update_loops.hpp"

namespace ckpt::kernels {

namespace {

#define CKPT_TARGET __attribute__((target("avx2,fma")))

using Floats = __m256;
constexpr std::size_t lanes = 8;

CKPT_TARGET inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
CKPT_TARGET inline Floats load(const Bfloat16* from) {
  const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
CKPT_TARGET inline void store(float* to, Floats value) { _mm256_storeu_ps(to, value); }
CKPT_TARGET inline Floats splat(float value) { return _mm256_set1_ps(value); }
CKPT_TARGET inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
CKPT_TARGET inline Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
CKPT_TARGET inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
CKPT_TARGET inline Floats divide(Floats a, Floats b) { return _mm256_div_ps(a, b); }
CKPT_TARGET inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
CKPT_TARGET inline Floats root(Floats value) { return _mm256_sqrt_ps(value); }
CKPT_TARGET inline Floats negate(Floats value) { return _mm256_xor_ps(value, _mm256_set1_ps(-0.0F)); }
CKPT_TARGET inline Floats larger(Floats a, Floats b) {
  return _mm256_or_ps(_mm256_max_ps(a, b), _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}
CKPT_TARGET inline Floats larger_or_first(Floats a, Floats b) { return _mm256_max_ps(b, a); }

#include "kernels/update_loops.inl"

}  // namespace

const UpdateLoops avx2_update = these_loops;

}  // namespace ckpt::kernels

#endif
