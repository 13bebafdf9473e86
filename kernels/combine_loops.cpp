#include "kernels/combine_loops.hpp"

#include "kernels/gf256.hpp"
#include "kernels/stripe_loops.hpp"

namespace ckpt::kernels {

Factor make_factor(std::uint8_t coefficient) {
  Factor factor{};
  factor.value = coefficient;
  for (unsigned i = 0; i < 16; ++i) {
    factor.low[i] = gf256::multiply(coefficient, static_cast<std::uint8_t>(i));
    factor.high[i] = gf256::multiply(coefficient, static_cast<std::uint8_t>(i << 4));
  }
  // Row i of the matrix gives bit i of the product. Its bit j is bit i of coefficient * 2^j. Row 0 is the highest byte.
  for (unsigned input = 0; input < 8; ++input) {
    const std::uint64_t column = gf256::multiply(coefficient, static_cast<std::uint8_t>(1U << input));
    for (unsigned output = 0; output < 8; ++output) {
      factor.matrix |= (column >> output & 1) << (8 * (7 - output) + input);
    }
  }
  return factor;
}

CombineLoop combine_loop(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (isa == Isa::avx512 && __builtin_cpu_supports("gfni") && __builtin_cpu_supports("avx512bw")) return avx512_combine;
  if (isa != Isa::portable && supported(Isa::avx2)) return avx2_combine;
#endif
  static_cast<void>(isa);
  return portable_combine;
}

}  // namespace ckpt::kernels
