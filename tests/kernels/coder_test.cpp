// Bytes through the coder, for every instruction set: against a slow reference and ISA-L, over lengths, alignments,
// ends of memory, orders of arrival, and all losses.
#include "kernels/coder.hpp"

#include <gtest/gtest.h>
#include <isa-l/erasure_code.h>
#include <isa-l/raid.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "parity_support.hpp"

namespace ckpt::kernels {
namespace {

std::vector<Bytes> random_sources(std::uint64_t seed, const std::vector<std::size_t>& sizes) {
  std::vector<Bytes> sources;
  for (const std::size_t size : sizes) sources.push_back(random_bytes(seed++, size));
  return sources;
}

std::vector<Source> views_of(const std::vector<Fenced>& fenced) {
  std::vector<Source> views;
  for (const Fenced& piece : fenced) views.push_back(piece.source());
  return views;
}

std::vector<Fenced> fenced(const std::vector<Bytes>& pieces) { return {pieces.begin(), pieces.end()}; }

// Outputs against the end of memory, with what lies before them watched.
struct Rows {
  Rows(std::size_t rows, std::size_t length_bytes)
      : digests(rows, std::vector<std::uint64_t>(leaf_count(length_bytes))) {
    for (std::size_t row = 0; row < rows; ++row) memory.emplace_back(length_bytes);
    for (std::size_t row = 0; row < rows; ++row) outputs.push_back({memory[row].data(), digests[row].data()});
  }

  void expect(const Matrix& matrix, const std::vector<Bytes>& sources, std::size_t length_bytes) const {
    for (std::size_t row = 0; row < matrix.rows; ++row) {
      const Bytes expected = slow_row(matrix, row, sources, length_bytes);
      ASSERT_TRUE(memory[row].bytes() == expected) << "row " << row;
      ASSERT_EQ(digests[row], digests_of(expected)) << "row " << row;
      for (std::size_t before = 1; before <= 64; ++before) ASSERT_EQ(*(outputs[row].data - before), std::byte{0});
    }
  }

  std::vector<Fenced> memory;
  std::vector<std::vector<std::uint64_t>> digests;
  std::vector<Output> outputs;
};

class CoderOnIsa : public testing::TestWithParam<Isa> {
 protected:
  static void expect_combines(const Matrix& matrix, const std::vector<Bytes>& sources, std::size_t length_bytes) {
    const auto memory = fenced(sources);
    Rows rows(matrix.rows, length_bytes);
    Coder(matrix).combine(views_of(memory), rows.outputs, length_bytes, {}, GetParam());
    rows.expect(matrix, sources, length_bytes);
  }
};

INSTANTIATE_TEST_SUITE_P(Supported, CoderOnIsa, testing::ValuesIn(supported_isas()),
                         [](const auto& isa) { return std::string(name(isa.param)); });

TEST_P(CoderOnIsa, EveryShortLengthEqualsTheSlowReference) {
  for (const std::size_t parity : {1, 2, 4}) {
    const Matrix matrix = ErasureCode(3, parity).encoder();
    for (std::size_t length = 0; length <= 400; ++length) {
      SCOPED_TRACE(length);
      ASSERT_NO_FATAL_FAILURE(expect_combines(matrix, random_sources(length, {length, length, length}), length));
    }
  }
}

TEST_P(CoderOnIsa, LengthsAroundTilesAndLeavesEqualTheSlowReference) {
  for (const std::size_t parity : {1, 3}) {
    const Matrix matrix = ErasureCode(2, parity).encoder();
    for (const std::size_t base : {std::size_t{4096}, std::size_t{8192}, leaf_size_bytes}) {
      for (const std::size_t length : {base - 65, base - 64, base - 1, base, base + 1, base + 63, base + 64, base + 65,
                                       base + 240, base + 241, base + 300}) {
        SCOPED_TRACE(length);
        ASSERT_NO_FATAL_FAILURE(expect_combines(matrix, random_sources(length, {length, length}), length));
      }
    }
  }
}

TEST_P(CoderOnIsa, PadsShortSourcesWithZerosAndCutsLongOnes) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    const std::size_t data = 1 + random() % 9, parity = 1 + random() % 4;
    const std::size_t length = random() % (i < 50 ? 20000 : 2 * leaf_size_bytes);
    std::vector<std::size_t> sizes;
    for (std::size_t source = 0; source < data; ++source) {
      const std::size_t kinds[] = {0, length, random() % (length + 1), length + random() % 100, random() % 300};
      sizes.push_back(kinds[random() % 5]);
    }
    ASSERT_NO_FATAL_FAILURE(
        expect_combines(ErasureCode(data, parity).encoder(), random_sources(random(), sizes), length));
  }
}

TEST_P(CoderOnIsa, NullSourcesWithoutBytesGiveZeros) {
  for (const std::size_t parity : {1, 2}) {
    const Matrix matrix = ErasureCode(2, parity).encoder();
    Rows rows(parity, 5000);
    Coder(matrix).combine(std::vector<Source>(2, Source{nullptr, 0}), rows.outputs, 5000, {}, GetParam());
    ASSERT_NO_FATAL_FAILURE(rows.expect(matrix, {Bytes(), Bytes()}, 5000));
  }
}

TEST_P(CoderOnIsa, EveryAlignmentOfSourcesAndOutputsGivesTheSame) {
  const std::size_t length = 9000;
  for (const std::size_t parity : {1, 2}) {
    const Matrix matrix = ErasureCode(3, parity).encoder();
    const Coder coder(matrix);
    const auto pieces = random_sources(parity, {length, length, length});
    std::vector<Bytes> expected;
    for (std::size_t row = 0; row < parity; ++row) expected.push_back(slow_row(matrix, row, pieces, length));
    for (std::size_t shift = 0; shift < 64; ++shift) {
      std::vector<Bytes> memory(3 + parity, Bytes(length + 256));
      const auto at = [&](std::size_t piece) {
        const auto address = reinterpret_cast<std::uintptr_t>(memory[piece].data());
        return memory[piece].data() + (64 - address % 64) + (shift * (piece + 1)) % 64;
      };
      std::vector<Source> sources;
      std::vector<Output> outputs;
      std::vector<std::vector<std::uint64_t>> digests(parity, std::vector<std::uint64_t>(1));
      for (std::size_t i = 0; i < 3; ++i) {
        std::copy(pieces[i].begin(), pieces[i].end(), at(i));
        sources.push_back({at(i), length});
      }
      for (std::size_t row = 0; row < parity; ++row) outputs.push_back({at(3 + row), digests[row].data()});
      coder.combine(sources, outputs, length, {}, GetParam());
      for (std::size_t row = 0; row < parity; ++row) {
        ASSERT_TRUE(std::equal(expected[row].begin(), expected[row].end(), outputs[row].data)) << shift;
        ASSERT_EQ(digests[row], digests_of(expected[row])) << shift;
        ASSERT_EQ(*(outputs[row].data - 1), std::byte{0});
        ASSERT_EQ(outputs[row].data[length], std::byte{0});
      }
    }
  }
}

TEST_P(CoderOnIsa, MatchesIsalsEncoding) {
  const std::size_t length = 3 * leaf_size_bytes;
  const auto pieces = random_sources(8, std::vector<std::size_t>(7, length));
  for (const std::size_t parity : {1, 2, 3, 4}) {
    const Matrix matrix = ErasureCode(7, parity).encoder();
    std::vector<unsigned char> tables(32 * 7 * parity);
    Matrix copy = matrix;
    ec_init_tables(7, static_cast<int>(parity), copy.coefficients.data(), tables.data());
    std::vector<std::vector<unsigned char>> theirs(parity, std::vector<unsigned char>(length));
    std::vector<unsigned char*> from, to;
    for (const Bytes& piece : pieces) {
      from.push_back(const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(piece.data())));
    }
    for (auto& row : theirs) to.push_back(row.data());
    ec_encode_data(static_cast<int>(length), 7, static_cast<int>(parity), tables.data(), from.data(), to.data());

    const auto memory = fenced(pieces);
    Rows rows(parity, length);
    Coder(matrix).combine(views_of(memory), rows.outputs, length, {}, GetParam());
    for (std::size_t row = 0; row < parity; ++row) {
      ASSERT_EQ(std::memcmp(rows.outputs[row].data, theirs[row].data(), length), 0);
    }
  }
}

TEST_P(CoderOnIsa, OneRowMatchesIsalsXor) {
  constexpr std::size_t length = 4 * 4096;
  alignas(64) static std::byte memory[4][length];
  for (std::size_t i = 0; i < 3; ++i) {
    const Bytes bytes = random_bytes(i, length);
    std::copy(bytes.begin(), bytes.end(), memory[i]);
  }
  std::array<void*, 4> pointers = {memory[0], memory[1], memory[2], memory[3]};
  ASSERT_EQ(xor_gen(4, length, pointers.data()), 0);
  const std::vector<Source> sources = {{memory[0], length}, {memory[1], length}, {memory[2], length}};
  const Coder coder(ErasureCode(3, 1).encoder());
  ASSERT_TRUE(coder.is_xor());
  Rows rows(1, length);
  coder.combine(sources, rows.outputs, length, {}, GetParam());
  EXPECT_EQ(std::memcmp(rows.outputs[0].data, memory[3], length), 0);
}

// The sizes of a stripe's data pieces: unequal, one empty, none divisible by anything.
std::vector<std::size_t> odd_sizes(std::size_t data) {
  const std::vector<std::size_t> sizes = {1009, 0, 997, 4201, 1, 4201, 300};
  return {sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(data)};
}

// Every set of lost pieces, data and parity mixed as they come: up to `parity` decode to what they were, more do not.
TEST_P(CoderOnIsa, EverySubsetOfLostPiecesDecodesUpToTheTolerance) {
  constexpr std::size_t length = 4201;
  for (std::size_t parity = 1; parity <= 3; ++parity) {
    for (std::size_t data = 1; data + parity <= 8; ++data) {
      const ErasureCode code(data, parity);
      std::vector<Bytes> pieces = random_sources(data * 10 + parity, odd_sizes(data));
      for (std::size_t row = 0; row < parity; ++row) {
        const std::vector<Bytes> sources(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(data));
        pieces.push_back(slow_row(code.encoder(), row, sources, length));
      }
      for (std::uint32_t lost_mask = 1; lost_mask < (1U << code.pieces()); ++lost_mask) {
        std::vector<std::size_t> left, lost;
        for (std::size_t i = 0; i < code.pieces(); ++i) (lost_mask >> i & 1 ? lost : left).push_back(i);
        if (lost.size() > parity) {
          ASSERT_THROW(code.decoder(left, lost), BeyondTolerance);
          continue;
        }
        left.resize(data);
        std::vector<Source> sources;
        for (const std::size_t position : left) sources.push_back({pieces[position].data(), pieces[position].size()});
        Rows rows(lost.size(), length);
        Coder(code.decoder(left, lost)).combine(sources, rows.outputs, length, {}, GetParam());
        for (std::size_t i = 0; i < lost.size(); ++i) {
          Bytes expected = pieces[lost[i]];
          expected.resize(length);
          ASSERT_TRUE(rows.memory[i].bytes() == expected) << data << "+" << parity << " lost " << lost_mask;
        }
      }
    }
  }
}

TEST_P(CoderOnIsa, SourcesAddedOneByOneInAnyOrderGiveTheSame) {
  std::mt19937_64 random(17);
  for (const std::size_t parity : {1, 2, 4}) {
    const Matrix matrix = ErasureCode(5, parity).encoder();
    const Coder coder(matrix);
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{1}, std::size_t{63}, std::size_t{4096 + 10}, leaf_size_bytes + 7777}) {
      SCOPED_TRACE(length);
      const auto pieces = random_sources(length, {length, length / 2, 0, length, length / 3});
      const auto memory = fenced(pieces);
      std::vector<std::size_t> order(5);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      Rows rows(parity, length);
      for (const Output& row : rows.outputs) std::fill_n(row.data, length, std::byte{0xEE});
      std::vector<Output> undigested = rows.outputs;
      for (Output& row : undigested) row.digests = nullptr;
      coder.start(order[0], memory[order[0]].source(), undigested, length, GetParam());
      for (std::size_t i = 1; i < 5; ++i) {
        coder.add(order[i], memory[order[i]].source(), i < 4 ? undigested : rows.outputs, length, GetParam());
      }
      ASSERT_NO_FATAL_FAILURE(rows.expect(matrix, pieces, length));
    }
  }
}

TEST_P(CoderOnIsa, ChunksOfLeavesInAnyOrderGiveTheSame) {
  const std::size_t length = 5 * leaf_size_bytes + 1234;
  const auto pieces = random_sources(4, {length, length - 5000, 2 * leaf_size_bytes + 9});
  const Matrix matrix = ErasureCode(3, 2).encoder();
  const Coder coder(matrix);
  const auto memory = fenced(pieces);
  Rows rows(2, length);
  for (const std::size_t first_leaf : {4, 0, 2}) {
    const std::size_t begin = first_leaf * leaf_size_bytes;
    std::vector<Source> sources;
    for (const Fenced& piece : memory) {
      const auto [data, size] = piece.source();
      sources.push_back(begin < size ? Source{data + begin, size - begin} : Source{nullptr, 0});
    }
    std::vector<Output> outputs;
    for (const Output& row : rows.outputs) outputs.push_back({row.data + begin, row.digests + first_leaf});
    coder.combine(sources, outputs, std::min(2 * leaf_size_bytes, length - begin), {}, GetParam());
  }
  rows.expect(matrix, pieces, length);
}

TEST_P(CoderOnIsa, DigestsSourcesInTheSamePassAndFindsDamage) {
  const std::size_t length = 2 * leaf_size_bytes + 100;
  for (const std::size_t parity : {1, 2}) {
    auto pieces = random_sources(6, {length, leaf_size_bytes + 241, 239, 0, length + 1});
    const Coder coder(ErasureCode(5, parity).encoder());
    std::vector<std::vector<std::uint64_t>> expected;
    for (const Bytes& piece : pieces) {
      expected.push_back(digests_of({piece.begin(), piece.begin() + std::min<std::ptrdiff_t>(length, piece.size())}));
    }
    const auto digest_all = [&] {
      const auto memory = fenced(pieces);
      Rows rows(parity, length);
      std::vector<std::vector<std::uint64_t>> found;
      for (const auto& digests : expected) found.emplace_back(digests.size());
      const std::vector<std::uint64_t*> targets = {found[0].data(), found[1].data(), found[2].data(), nullptr,
                                                   found[4].data()};
      coder.combine(views_of(memory), rows.outputs, length, targets, GetParam());
      EXPECT_NO_FATAL_FAILURE(rows.expect(coder.matrix(), pieces, length));
      return found;
    };
    EXPECT_EQ(digest_all(), expected);
    pieces[1][leaf_size_bytes + 200] ^= std::byte{4};
    const auto found = digest_all();
    EXPECT_NE(found[1][1], expected[1][1]);
    EXPECT_EQ(found[1][0], expected[1][0]);
    EXPECT_EQ(found[0], expected[0]);
  }
}

TEST_P(CoderOnIsa, AnOutputMayReplaceASource) {
  const std::size_t length = 3 * 4096 + 77;
  for (const std::size_t parity : {1, 2}) {
    const Matrix matrix = ErasureCode(3, parity).encoder();
    const auto pieces = random_sources(9, {length, length, length});
    const auto memory = fenced(pieces);
    std::vector<Output> outputs;
    for (std::size_t row = 0; row < parity; ++row) outputs.push_back({memory[row].data(), nullptr});
    Coder(matrix).combine(views_of(memory), outputs, length, {}, GetParam());
    for (std::size_t row = 0; row < parity; ++row) {
      EXPECT_TRUE(memory[row].bytes() == slow_row(matrix, row, pieces, length));
    }
  }
}

TEST(Coder, RefusesATooLargeMatrix) {
  EXPECT_THROW(Coder(Matrix{}), std::invalid_argument);
  EXPECT_THROW(Coder({.rows = 5, .columns = 1, .coefficients = std::vector<std::uint8_t>(5)}), std::invalid_argument);
  EXPECT_THROW(Coder({.rows = 1, .columns = 65, .coefficients = std::vector<std::uint8_t>(65)}), std::invalid_argument);
  EXPECT_THROW(Coder({.rows = 1, .columns = 2, .coefficients = {1}}), std::invalid_argument);
}

TEST(Coder, UsesXorOnlyForOneRowOfOnes) {
  EXPECT_TRUE(Coder(ErasureCode(63, 1).encoder()).is_xor());
  EXPECT_FALSE(Coder(ErasureCode(3, 2).encoder()).is_xor());
  const ErasureCode code(3, 2);
  EXPECT_TRUE(Coder(code.decoder(std::vector<std::size_t>{0, 1, 3}, std::vector<std::size_t>{2})).is_xor());
  EXPECT_FALSE(Coder(code.decoder(std::vector<std::size_t>{0, 1, 4}, std::vector<std::size_t>{2})).is_xor());
}

}  // namespace
}  // namespace ckpt::kernels
