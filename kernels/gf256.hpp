// Arithmetic in GF(2^8), the field of the erasure code. A byte is a polynomial over GF(2), modulo x^8 + x^4 + x^3 + x^2
// + 1 (0x11D). The powers of 2 are all elements except 0. Addition is exclusive or. All functions are constexpr.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ckpt::kernels::gf256 {

inline constexpr unsigned polynomial = 0x11D;

constexpr std::uint8_t times_two(std::uint8_t a) {
  return static_cast<std::uint8_t>(a < 0x80 ? a << 1 : (a << 1) ^ polynomial);
}

struct Tables {
  std::array<std::uint8_t, 510> power{};  // all powers of 2, twice: the index may be the sum of two logarithms
  std::array<std::uint8_t, 256> logarithm{};
};

constexpr Tables make_tables() {
  Tables tables;
  std::uint8_t power = 1;
  for (std::size_t i = 0; i < 255; ++i) {
    tables.power[i] = tables.power[i + 255] = power;
    tables.logarithm[power] = static_cast<std::uint8_t>(i);
    power = times_two(power);
  }
  return tables;
}

inline constexpr Tables tables = make_tables();

constexpr std::uint8_t multiply(std::uint8_t a, std::uint8_t b) {
  if (a == 0 || b == 0) return 0;
  return tables.power[static_cast<std::size_t>(tables.logarithm[a]) + tables.logarithm[b]];
}

// `a` must not be 0.
constexpr std::uint8_t inverse(std::uint8_t a) { return tables.power[255U - tables.logarithm[a]]; }

// `b` must not be 0.
constexpr std::uint8_t divide(std::uint8_t a, std::uint8_t b) { return multiply(a, inverse(b)); }

}  // namespace ckpt::kernels::gf256
