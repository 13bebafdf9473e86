// cuda_power() gives the bits of a GPU.
#include "kernels/cuda_power.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>

namespace ckpt::kernels {
namespace {

// FNV-1a over the bits of base^1, base^2, ... base^200000.
std::uint64_t digest_of_powers(float base) {
  std::uint64_t digest = 0xcbf29ce484222325;
  for (int exponent = 1; exponent <= 200'000; ++exponent)
    digest = (digest ^ std::bit_cast<std::uint32_t>(cuda_power(base, static_cast<float>(exponent)))) * 0x100000001b3;
  return digest;
}

// All of these powers were compared with those of torch.pow() on an H100.
TEST(CudaPower, MatchesAnH100BitForBitForCommonBetas) {
  EXPECT_EQ(digest_of_powers(0.9F), 0x6caca171c4d2833bU);
  EXPECT_EQ(digest_of_powers(0.95F), 0x30ce3295ba795829U);
  EXPECT_EQ(digest_of_powers(0.98F), 0xf10d783e78cac7f8U);
  EXPECT_EQ(digest_of_powers(0.99F), 0x43ed6d24b97f552bU);
  EXPECT_EQ(digest_of_powers(0.999F), 0xf1a667aff0d2869bU);
  EXPECT_EQ(digest_of_powers(0.9999F), 0xf4fe254e6921e993U);
}

TEST(CudaPower, PowerOfZeroIsZero) { EXPECT_EQ(cuda_power(0, 3), 0); }

}  // namespace
}  // namespace ckpt::kernels
