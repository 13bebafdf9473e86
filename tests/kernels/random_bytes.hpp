// Random bytes for tests. The same seed gives the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace ckpt::kernels {

inline std::vector<std::byte> random_bytes(std::uint64_t seed, std::size_t size_bytes) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> words(size_bytes / 8 + 1);
  for (std::uint64_t& word : words) word = random();
  std::vector<std::byte> bytes(size_bytes);
  if (size_bytes > 0) std::memcpy(bytes.data(), words.data(), size_bytes);
  return bytes;
}

}  // namespace ckpt::kernels
