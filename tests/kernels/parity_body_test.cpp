// The GPU kernel's body, run on the host thread by thread: against the coder, over lengths and alignments of
// everything, against the ends of memory. Alignment and bounds are also what the sanitizers watch here.
#include "kernels/parity_body.hpp"

#include <gtest/gtest.h>
#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "kernels/parity_job.hpp"
#include "parity_support.hpp"

namespace ckpt::kernels::device {
namespace {

// Threads in an order that no GPU promises to avoid.
void run(const Matrix& matrix, const std::vector<Source>& sources, const std::vector<Output>& outputs,
         std::size_t length_bytes, bool to_sum) {
  const ParityJob job = make_parity_job(matrix, sources, outputs, length_bytes, to_sum);
  with_outputs(job, matrix.rows, [&]<class Made>(Made) {
    std::vector<std::uint64_t> threads(block_count(job) * parity_threads_per_block);
    std::iota(threads.begin(), threads.end(), 0);
    std::shuffle(threads.begin(), threads.end(), std::mt19937_64(length_bytes));
    for (const std::uint64_t thread : threads)
      encode_vector<Made>(job, thread / parity_threads_per_block, thread % parity_threads_per_block);
  });
}

// Begins `shift` bytes past a 16-byte boundary and ends where memory does.
class Shifted {
 public:
  Shifted(const Bytes& bytes, std::size_t shift)
      : size_bytes_(bytes.size()), memory_(bytes.size() + padding(bytes.size(), shift)) {
    if (!bytes.empty()) std::memcpy(memory_.data(), bytes.data(), bytes.size());
  }
  std::byte* data() const { return memory_.data(); }
  Source source() const { return {memory_.data(), size_bytes_}; }
  Bytes bytes() const { return {memory_.data(), memory_.data() + size_bytes_}; }
  // So that whoever reads there gets other sums.
  void spoil_padding() {
    std::fill_n(memory_.data() + size_bytes_, memory_.bytes().size() - size_bytes_, std::byte{0x5A});
  }
  std::byte before() const { return *(memory_.data() - 1); }
  bool padding_is_zero() const {
    const Bytes all = memory_.bytes();
    return std::all_of(all.begin() + static_cast<std::ptrdiff_t>(size_bytes_), all.end(),
                       [](std::byte b) { return b == std::byte{0}; });
  }

 private:
  // The fenced end is page-aligned, so the bytes after the piece set its alignment.
  static std::size_t padding(std::size_t size_bytes, std::size_t shift) { return (0 - size_bytes - shift) % 16; }

  std::size_t size_bytes_;
  Fenced memory_;
};

void expect_same(const Matrix& matrix, const std::vector<Bytes>& pieces, const std::vector<std::size_t>& shifts,
                 std::size_t length, bool to_sum) {
  std::vector<Shifted> from, to;
  std::vector<Source> sources;
  std::vector<Output> outputs;
  for (std::size_t i = 0; i < pieces.size(); ++i) from.emplace_back(pieces[i], shifts[i]);
  for (Shifted& piece : from) {
    piece.spoil_padding();
    sources.push_back(piece.source());
  }
  std::vector<Bytes> before;
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    before.push_back(random_bytes(1000 + row, length));
    to.emplace_back(before.back(), shifts[pieces.size() + row]);
  }
  for (const Shifted& piece : to) outputs.push_back({piece.data(), nullptr});
  run(matrix, sources, outputs, length, to_sum);
  for (std::size_t row = 0; row < matrix.rows; ++row) {
    Bytes expected = slow_row(matrix, row, pieces, length);
    for (std::size_t i = 0; to_sum && i < length; ++i) expected[i] ^= before[row][i];
    ASSERT_TRUE(to[row].bytes() == expected) << "row " << row << ", " << length << " bytes";
    ASSERT_EQ(to[row].before(), std::byte{0});
    ASSERT_TRUE(to[row].padding_is_zero());
  }
}

TEST(ParityBody, MatchesTheReferenceForShortLengthsAtAllOutputAlignments) {
  for (const std::size_t parity : {1, 2}) {
    const Matrix matrix = ErasureCode(3, parity).encoder();
    for (std::size_t length = 0; length <= 70; ++length) {
      const std::vector<Bytes> pieces(3, random_bytes(length, length));
      for (std::size_t shift = 0; shift < 16; ++shift) {
        ASSERT_NO_FATAL_FAILURE(expect_same(matrix, pieces, {0, shift, 5, shift, shift}, length, false));
      }
    }
  }
}

TEST(ParityBody, MatchesTheReferenceForAllAlignmentPairs) {
  for (const std::size_t parity : {1, 2, 3, 4}) {
    const Matrix matrix = ErasureCode(2, parity).encoder();
    const std::vector<Bytes> pieces = {random_bytes(1, 200), random_bytes(2, 200)};
    for (std::size_t source = 0; source < 16; ++source) {
      for (std::size_t output = 0; output < 16; ++output) {
        // The rows lie differently, too.
        const std::vector<std::size_t> shifts = {source, 15 - source, output, output * 3 % 16, output, 1};
        ASSERT_NO_FATAL_FAILURE(expect_same(matrix, pieces, shifts, 200, (source & 1) != 0));
      }
    }
  }
}

constexpr std::size_t block_bytes = parity_block_bytes;

// Several blocks, most of which have all bytes of most sources. So groups of every size are read at once.
TEST(ParityBody, BlocksWithWholeSourcesEqualTheReference) {
  std::mt19937_64 random(24);
  for (std::size_t data = 1; data <= 13; ++data) {
    for (const std::size_t parity : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << data << " sources, " << parity << " rows");
      const std::size_t aligned = random() % 16, length = 3 * block_bytes + 16 * (random() % 3) + random() % 2;
      const std::size_t block_end = 2 * block_bytes - aligned;
      std::vector<Bytes> pieces;
      for (std::size_t source = 0; source < data; ++source) {
        const std::size_t shorter[] = {block_end, block_end - 1, block_bytes / 2 * 3, 0};
        pieces.push_back(random_bytes(random(), random() % 4 == 0 ? shorter[random() % std::size(shorter)] : length));
      }
      std::vector<std::size_t> shifts(data + parity, aligned);
      if (data > 3) shifts[random() % data] = (aligned + 1 + random() % 15) % 16;  // one is not aligned
      // Ones everywhere, ones in the first row, and no ones.
      ASSERT_NO_FATAL_FAILURE(
          expect_same(ErasureCode(data, parity).encoder(), pieces, shifts, length, random() % 2 == 0));
      Matrix without_ones = ErasureCode(data, parity).encoder();
      for (std::size_t column = 0; column < data; ++column)
        without_ones.at(0, column) = static_cast<std::uint8_t>(2 + column);
      ASSERT_NO_FATAL_FAILURE(expect_same(without_ones, pieces, shifts, length, false));
    }
  }
}

// The reads that no check precedes. The longest sources come first, because a block stops at the first that it lacks.
TEST(ParityBody, AlignedSourcesComeFirstAndTheLongestOfThemFirst) {
  alignas(16) std::byte memory[64];
  const std::vector<Source> sources = {{memory + 1, 30}, {memory, 10}, {memory + 16, 20}, {memory + 2, 40}};
  const Matrix matrix{.rows = 1, .columns = 4, .coefficients = {1, 2, 3, 4}};
  const ParityJob job = make_parity_job(matrix, sources, std::vector<Output>{{memory + 48, nullptr}}, 16, false);
  EXPECT_EQ(job.aligned_count, 2U);
  std::vector<unsigned> order(job.coefficients[0], job.coefficients[0] + 4);
  EXPECT_EQ(order, (std::vector<unsigned>{3, 2, 4, 1}));
  EXPECT_EQ(job.sources[0].size_bytes, 16U);
}

TEST(ParityBody, SourcesOfAllLengthsAndNumbersEqualTheReference) {
  std::mt19937_64 random(23);
  for (int i = 0; i < 150; ++i) {
    SCOPED_TRACE(i);
    const std::size_t parity = 1 + random() % 4;
    const std::size_t data = i < 140 ? 1 + random() % 9 : 60;
    const std::size_t length = random() % 700;
    std::vector<Bytes> pieces;
    std::vector<std::size_t> shifts;
    for (std::size_t source = 0; source < data; ++source) {
      const std::size_t sizes[] = {0, length, random() % (length + 1), length + random() % 40};
      pieces.push_back(random_bytes(random(), sizes[random() % 4]));
    }
    for (std::size_t piece = 0; piece < data + parity; ++piece) shifts.push_back(random() % 16);
    ASSERT_NO_FATAL_FAILURE(
        expect_same(ErasureCode(data, parity).encoder(), pieces, shifts, length, random() % 2 == 0));
  }
}

// Sources begin in the middle of a vector whose first half the address sanitizer forbids, and end where their memory
// does; what lies before an output keeps what it is.
TEST(ParityBody, TouchesOnlySourcesAndOutputs) {
  const Matrix matrix = ErasureCode(2, 1).encoder();
  constexpr std::size_t forbidden = 8;
  for (std::size_t shift = 0; shift < 16; ++shift) {
    for (std::size_t length = 1; length <= 101; ++length) {
      if (length == 101) length = 2 * block_bytes + 5;
      const std::vector<Bytes> pieces = {random_bytes(length, length), random_bytes(7, length / 2 + 1)};
      std::vector<std::unique_ptr<std::byte[]>> memory;
      std::vector<Source> sources;
      for (const Bytes& piece : pieces) {
        memory.push_back(std::make_unique<std::byte[]>(forbidden + piece.size()));
        std::byte* begin = memory.back().get();
        std::copy(piece.begin(), piece.end(), begin + forbidden);
        ASAN_POISON_MEMORY_REGION(begin, forbidden);
        sources.push_back({begin + forbidden, piece.size()});
      }
      const auto output = std::make_unique<std::byte[]>(shift + length);
      std::fill_n(output.get(), shift, std::byte{0x77});
      run(matrix, sources, {{output.get() + shift, nullptr}}, length, false);
      const Bytes expected = slow_row(matrix, 0, pieces, length);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), output.get() + shift));
      ASSERT_TRUE(std::all_of(output.get(), output.get() + shift, [](std::byte b) { return b == std::byte{0x77}; }));
      for (const auto& piece : memory) ASAN_UNPOISON_MEMORY_REGION(piece.get(), forbidden);
    }
  }
}

TEST(ParityBody, EveryCoefficientMultipliesLikeTheReference) {
  const Bytes all = [] {
    Bytes bytes(256);
    for (std::size_t i = 0; i < 256; ++i) bytes[i] = static_cast<std::byte>(i);
    return bytes;
  }();
  for (unsigned coefficient = 0; coefficient < 256; ++coefficient) {
    const Matrix matrix{.rows = 1, .columns = 1, .coefficients = {static_cast<std::uint8_t>(coefficient)}};
    ASSERT_NO_FATAL_FAILURE(expect_same(matrix, {all}, {0, 0}, 256, false));
  }
}

TEST(ParityBody, RefusesSourcesAndOutputsThatDoNotFitTheMatrix) {
  const Matrix matrix = ErasureCode(2, 1).encoder();
  const std::vector<Source> two(2, Source{nullptr, 0});
  std::uint64_t digest = 0;
  const std::vector<Output> one{{nullptr, nullptr}}, digested{{nullptr, &digest}};
  EXPECT_NO_THROW(make_parity_job(matrix, two, one, 0, false));
  EXPECT_THROW(make_parity_job(matrix, std::span(two).first(1), one, 0, false), std::invalid_argument);
  EXPECT_THROW(make_parity_job(matrix, two, {}, 0, false), std::invalid_argument);
  EXPECT_THROW(make_parity_job(matrix, two, digested, 0, false), std::invalid_argument);
}

}  // namespace
}  // namespace ckpt::kernels::device
