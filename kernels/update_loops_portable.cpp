// Plain C++, one element at a time. std::fma() is exact on every processor, and slow where there is no instruction.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/update_loops.hpp"

namespace ckpt::kernels {

namespace {

#define CKPT_TARGET

using Floats = float;
constexpr std::size_t lanes = 1;

Floats load(const float* from) { return *from; }
Floats load(const Bfloat16* from) { return std::bit_cast<float>(std::uint32_t{from->bits} << 16); }
void store(float* to, Floats value) { *to = value; }
Floats splat(float value) { return value; }
Floats add(Floats a, Floats b) { return a + b; }
Floats subtract(Floats a, Floats b) { return a - b; }
Floats multiply(Floats a, Floats b) { return a * b; }
Floats divide(Floats a, Floats b) { return a / b; }
Floats fma(Floats a, Floats b, Floats c) { return std::fma(a, b, c); }
Floats root(Floats value) { return std::sqrt(value); }
Floats negate(Floats value) { return -value; }
Floats larger(Floats a, Floats b) {
  if (std::isnan(a) || std::isnan(b)) return std::bit_cast<float>(~std::uint32_t{0});
  return a > b ? a : b;
}
Floats larger_or_first(Floats a, Floats b) { return b > a ? b : a; }

#include "kernels/update_loops.inl"

}  // namespace

const UpdateLoops portable_update = these_loops;

}  // namespace ckpt::kernels
