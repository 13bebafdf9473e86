#include "kernels/cuda_power.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace ckpt::kernels {
namespace {

float number(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// A number with twice the digits of a float: the sum of both.
struct Pair {
  float high;
  float low;
};

// The logarithm to base 2. base = mantissa * 2^exponent, with a mantissa near 1. With u = (m - 1) / (m + 1), the
// logarithm of m is 2 * (u + u^3 / 3 + ...).
Pair binary_logarithm(float base) {
  const auto bits = std::bit_cast<std::int32_t>(base);
  const std::int32_t exponent_bits = (bits - 0x3f3504f3) & ~0x007fffff;
  const auto exponent = static_cast<float>(exponent_bits >> 23);
  const auto mantissa = std::bit_cast<float>(bits - exponent_bits);
  const float below = mantissa - 1, above = mantissa + 1, inverse = 1 / above;
  const float u = 2 * below * inverse, square = u * u;
  const float u_rest = inverse * std::fma(-u, below, 2 * (below - u));
  float series = std::fma(number(0x3a2c32e4), square, number(0x3b52e7db));
  series = std::fma(series, square, number(0x3c93bb73));
  series = std::fma(series, square, number(0x3df6384f)) * square;

  const float per_e = number(0x3fb8aa3b), per_e_rest = number(0x32a55e34);  // together: 1 / ln 2
  const float sum = std::fma(u, per_e, exponent);
  float rest = std::fma(u, per_e, exponent - sum);
  rest = std::fma(u_rest, per_e, rest);
  rest = std::fma(u, per_e_rest, rest);
  rest = std::fma(series * 3, u_rest, rest);
  rest = std::fma(series, u, rest);
  const float high = sum + rest;
  return {high, rest - (high - sum)};
}

// 2 to the power of a number between -0.5 and 0.5
float small_power(float exponent) {
  float sum = number(0x391fcb8e);
  for (const std::uint32_t factor : {0x3aaf85edU, 0x3c1d9856U, 0x3d6357bbU, 0x3e75fdecU, 0x3f317218U, 0x3f800000U})
    sum = std::fma(sum, exponent, number(factor));
  return sum;
}

}  // namespace

// The operations are those of CUDA's library for devices, in its order.
float cuda_power(float base, float exponent) {
  constexpr float no_float_is_so_small = -152, no_float_is_so_large = 129;
  const Pair logarithm = binary_logarithm(base);
  const float product = logarithm.high * exponent;
  if (product < no_float_is_so_small) return 0;
  if (!(product < no_float_is_so_large)) return INFINITY;
  const float rest = std::fma(logarithm.low, exponent, std::fma(logarithm.high, exponent, -product));
  const float whole = std::nearbyint(product);
  return std::ldexp(small_power(rest + (product - whole)), static_cast<int>(whole));
}

}  // namespace ckpt::kernels
