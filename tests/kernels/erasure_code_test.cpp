// The field, the matrix and its inversion. What these say is on other nodes' memory: constants are part of the format.
#include "kernels/erasure_code.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "kernels/gf256.hpp"
#include "parity_support.hpp"

namespace ckpt::kernels {
namespace {

TEST(Field, MultipliesAndDividesLikeTheSlowReference) {
  for (unsigned a = 0; a < 256; ++a) {
    for (unsigned b = 0; b < 256; ++b) {
      const auto product = gf256::multiply(static_cast<std::uint8_t>(a), static_cast<std::uint8_t>(b));
      ASSERT_EQ(product, slow_multiply(a, b));
      if (b != 0) {
        ASSERT_EQ(gf256::divide(product, static_cast<std::uint8_t>(b)), a);
      }
    }
  }
}

TEST(ErasureCode, MatchesKnownCoefficients) {
  const Matrix expected{.rows = 4, .columns = 6, .coefficients = {1,    1,    1,    1,    1,    1,     //
                                                                  0xA6, 0x46, 0xBB, 0x7B, 0x9C, 0xAC,  //
                                                                  0xF5, 0x68, 0x8F, 0x52, 0xA6, 0x2C,  //
                                                                  0xD2, 0x8F, 0xF5, 0xC8, 0xB4, 0x7B}};
  const Matrix matrix = ErasureCode(6, 4).encoder();
  for (std::size_t row = 0; row < 4; ++row) {
    for (std::size_t column = 0; column < 6; ++column) {
      // c = y / (y xor row), without a table: c * (y xor row) = y.
      const unsigned y = static_cast<unsigned>(4 + column);
      EXPECT_EQ(slow_multiply(matrix.at(row, column), y ^ static_cast<unsigned>(row)), y);
    }
  }
  EXPECT_EQ(matrix, expected);
}

TEST(ErasureCode, FirstRowIsAllOnesAndRowsDoNotDependOnTheirNumber) {
  const Matrix four = ErasureCode(60, 4).encoder();
  EXPECT_TRUE(std::all_of(four.coefficients.begin(), four.coefficients.begin() + 60, [](auto c) { return c == 1; }));
  for (std::size_t parity = 1; parity <= 4; ++parity) {
    const Matrix fewer = ErasureCode(17, parity).encoder();
    for (std::size_t row = 0; row < parity; ++row) {
      for (std::size_t column = 0; column < 17; ++column) {
        EXPECT_EQ(fewer.at(row, column), four.at(row, column));
      }
    }
  }
}

std::vector<std::size_t> positions_of(std::uint64_t mask) {
  std::vector<std::size_t> positions;
  for (std::size_t position = 0; position < 64; ++position) {
    if (mask >> position & 1) positions.push_back(position);
  }
  return positions;
}

// Decoding must undo encoding: the sources' generator rows, combined as the decoder says, are the wanted piece's.
void expect_decodes(const ErasureCode& code, const std::vector<std::size_t>& sources,
                    const std::vector<std::size_t>& wanted) {
  const Matrix encoder = code.encoder();
  const auto generator = [&](std::size_t position, std::size_t column) -> std::uint8_t {
    if (position >= code.data()) return encoder.at(position - code.data(), column);
    return position == column ? 1 : 0;
  };
  const Matrix decoder = code.decoder(sources, wanted);
  for (std::size_t row = 0; row < wanted.size(); ++row) {
    for (std::size_t column = 0; column < code.data(); ++column) {
      std::uint8_t sum = 0;
      for (std::size_t i = 0; i < sources.size(); ++i) {
        sum ^= slow_multiply(decoder.at(row, i), generator(sources[i], column));
      }
      ASSERT_EQ(sum, generator(wanted[row], column));
    }
  }
}

TEST(ErasureCode, EverySubsetOfUpToTwelvePiecesDecodes) {
  for (std::size_t parity = 1; parity <= 4; ++parity) {
    for (std::size_t data = 1; data + parity <= 12; ++data) {
      const ErasureCode code(data, parity);
      const std::uint64_t all = (1ULL << code.pieces()) - 1;
      for (std::uint64_t mask = 0; mask <= all; ++mask) {
        if (static_cast<std::size_t>(std::popcount(mask)) != data) continue;
        ASSERT_NO_FATAL_FAILURE(expect_decodes(code, positions_of(mask), positions_of(all & ~mask)));
      }
    }
  }
}

TEST(ErasureCode, LargestStripeDecodesFromAnySixtyInAnyOrder) {
  const ErasureCode code(60, 4);
  std::mt19937_64 random(3);
  std::vector<std::size_t> positions(64);
  std::iota(positions.begin(), positions.end(), 0);
  for (int i = 0; i < 30; ++i) {
    std::shuffle(positions.begin(), positions.end(), random);
    ASSERT_NO_FATAL_FAILURE(
        expect_decodes(code, {positions.begin(), positions.begin() + 60}, {positions.begin() + 60, positions.end()}));
  }
}

TEST(ErasureCode, ReportsHowManyPiecesAreLeftBeyondTolerance) {
  const ErasureCode code(6, 2);
  for (std::uint64_t mask = 0; mask < 256; ++mask) {
    if (std::popcount(mask) != 5) continue;
    try {
      code.decoder(positions_of(mask), positions_of(255 & ~mask));
      FAIL() << "decoded six pieces from five";
    } catch (const BeyondTolerance& error) {
      EXPECT_STREQ(error.what(),
                   "a stripe of 6 data and 2 parity pieces cannot be decoded from 5 pieces: take the lost pieces from "
                   "another tier");
    }
  }
}

TEST(ErasureCode, RefusesInvalidCodesAndPieces) {
  for (const auto& [data, parity] : std::vector<std::pair<std::size_t, std::size_t>>{
           {0, 1}, {1, 0}, {4, 5}, {63, 2}, {64, 0}, {~std::size_t{0}, 2}}) {
    EXPECT_THROW(ErasureCode(data, parity), std::invalid_argument);
  }
  EXPECT_NO_THROW(ErasureCode(63, 1));
  const ErasureCode code(2, 1);
  const std::vector<std::size_t> wanted{0};
  for (const auto& sources : std::vector<std::vector<std::size_t>>{{1, 1}, {1, 3}, {0, 1, 2}}) {
    EXPECT_THROW(code.decoder(sources, wanted), std::invalid_argument);
  }
  EXPECT_THROW(code.decoder(std::vector<std::size_t>{1, 2}, std::vector<std::size_t>{3}), std::invalid_argument);
}

}  // namespace
}  // namespace ckpt::kernels
