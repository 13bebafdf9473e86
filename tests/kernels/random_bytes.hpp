// Reproducible bytes for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace ckpt::kernels {

inline std::vector<std::byte> random_bytes(std::uint64_t seed, std::size_t size_bytes) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size_bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace ckpt::kernels
