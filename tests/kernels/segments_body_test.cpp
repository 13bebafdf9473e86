// The GPU's packing, unpacking and digesting, run on the host thread by thread, over tensors with memory that may not
// be touched right behind them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <memory>

#include "kernels/pack_body.hpp"
#include "parity_support.hpp"

namespace ckpt::kernels::device {
namespace {

// Tensors in a row, and the table that finds them.
class Tensors {
 public:
  explicit Tensors(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) {
      const Bytes bytes = random_bytes(static_cast<unsigned>(memories_.size()) + 1, size);
      memories_.push_back(std::make_unique<Fenced>(bytes));
      table_.push_back({reinterpret_cast<unsigned char*>(memories_.back()->data()), all_.size()});
      all_.insert(all_.end(), bytes.begin(), bytes.end());
    }
    table_.push_back({nullptr, all_.size()});
  }
  // From now on this tensor may be copied from where it is.
  void make_direct(std::size_t tensor) { table_[tensor].is_direct = true; }
  const Bytes& all() const { return all_; }
  SegmentsJob job(std::uint64_t first_byte, std::uint64_t length_bytes, void* packed) const {
    return {table_.data(), table_.size() - 1, first_byte, length_bytes, static_cast<unsigned char*>(packed), false};
  }
  Bytes read() const {
    Bytes all;
    for (std::size_t i = 0; i + 1 < table_.size(); ++i) {
      const auto* const begin = reinterpret_cast<const std::byte*>(table_[i].data);
      all.insert(all.end(), begin, begin + (table_[i + 1].begin - table_[i].begin));
    }
    return all;
  }
  void clear() {
    for (std::size_t i = 0; i + 1 < table_.size(); ++i)
      std::fill_n(table_[i].data, table_[i + 1].begin - table_[i].begin, std::uint8_t{0});
  }

 private:
  std::vector<std::unique_ptr<Fenced>> memories_;
  std::vector<DeviceSegment> table_;
  Bytes all_;
};

// Moves the leaves of a range, and returns their digests.
template <Direction direction>
std::vector<std::uint64_t> move(const SegmentsJob& range) {
  const PackJob job{range, nullptr, make_digest_keys()};
  std::vector<std::uint64_t> digests;
  for (std::uint64_t i = 0; i < leaf_count(range.length_bytes); ++i)
    digests.push_back(move_leaf_on_host<direction>(job, i));
  return digests;
}

std::uint64_t xxhash_of(const Bytes& bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

const std::vector<std::vector<std::size_t>> cases = {
    {1},           {16}, {15, 1, 17}, {4096, 3, 3, 3, 5000}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 40},
    {33, 64, 100},
};

TEST(SegmentsBody, PacksAllTensorsInARow) {
  for (const auto& sizes : cases) {
    const Tensors tensors(sizes);
    alignas(16) std::byte packed[16384];
    EXPECT_THAT(move<Direction::pack>(tensors.job(0, tensors.all().size(), packed)),
                testing::ElementsAre(xxhash_of(tensors.all())));
    EXPECT_EQ(Bytes(packed, packed + tensors.all().size()), tensors.all());
  }
}

TEST(SegmentsBody, PacksEveryRangeAndWritesNothingBehindIt) {
  const Tensors tensors({100, 7, 3000, 1, 64, 50});
  for (std::uint64_t first = 0; first < tensors.all().size(); first += 16) {
    for (const std::uint64_t length : {1ul, 16ul, 100ul}) {
      if (first + length > tensors.all().size()) continue;
      alignas(16) std::byte packed[128] = {};
      const auto digests = move<Direction::pack>(tensors.job(first, length, packed));
      const auto begin = tensors.all().begin() + static_cast<std::ptrdiff_t>(first);
      Bytes expected(begin, begin + static_cast<std::ptrdiff_t>(length));
      EXPECT_THAT(digests, testing::ElementsAre(xxhash_of(expected)));
      expected.resize(sizeof(packed));
      EXPECT_EQ(Bytes(packed, packed + sizeof(packed)), expected);
    }
  }
}

TEST(SegmentsBody, UnpacksEverythingInTwoRanges) {
  for (const auto& sizes : cases) {
    Tensors tensors(sizes);
    const std::uint64_t length = tensors.all().size(), cut = length / 2 / 16 * 16;
    alignas(16) std::byte packed[16384];
    std::copy(tensors.all().begin(), tensors.all().end(), packed);
    tensors.clear();
    for (const auto& [first, size] : {std::pair{std::uint64_t{0}, cut}, std::pair{cut, length - cut}}) {
      const auto digests = move<Direction::unpack>(tensors.job(first, size, packed + first));
      EXPECT_EQ(digests, digests_of(Bytes(packed + first, packed + first + size)));
    }
    EXPECT_EQ(tensors.read(), tensors.all());
  }
}

TEST(SegmentsBody, LeafOfEveryLengthMatchesXxhash) {
  for (std::size_t length = 1; length < 2100; length += length < 260 ? 1 : 7) {
    Tensors tensors({length});
    alignas(16) std::byte packed[2112];
    EXPECT_THAT(move<Direction::pack>(tensors.job(0, length, packed)), testing::ElementsAre(xxhash_of(tensors.all())))
        << length;
    EXPECT_THAT(move<Direction::unpack>(tensors.job(0, length, packed)), testing::ElementsAre(xxhash_of(tensors.all())))
        << length;
  }
}

TEST(SegmentsBody, EveryLeafOfAPieceHasItsOwnDigest) {
  for (const std::size_t odd : {0, 1, 16, 333}) {
    const Tensors tensors({leaf_size_bytes / 2, 2 * leaf_size_bytes + odd, 3});
    EXPECT_EQ(move<Direction::pack>(tensors.job(0, tensors.all().size(), nullptr)), digests_of(tensors.all()));
  }
}

TEST(SegmentsBody, PacksAndUnpacksWholeLeavesBesideOthers) {
  for (const std::vector<std::size_t>& sizes :
       {std::vector{2 * leaf_size_bytes}, {2 * leaf_size_bytes + 16, 48}, {leaf_size_bytes, leaf_size_bytes, 3}}) {
    Tensors tensors(sizes);
    Bytes packed(tensors.all().size() + 32, std::byte{0x5A});
    std::byte* const aligned = packed.data() + (16 - misalignment(packed.data())) % 16;
    const SegmentsJob job = tensors.job(0, tensors.all().size(), aligned);
    EXPECT_EQ(move<Direction::pack>(job), digests_of(tensors.all()));
    EXPECT_EQ(std::memcmp(aligned, tensors.all().data(), tensors.all().size()), 0);
    EXPECT_EQ(aligned[tensors.all().size()], std::byte{0x5A});
    tensors.clear();
    EXPECT_EQ(move<Direction::unpack>(job), digests_of(tensors.all()));
    EXPECT_EQ(tensors.read(), tensors.all());
  }
}

TEST(SegmentsBody, DigestsLeavesOfADirectTensorWithoutPacking) {
  Tensors tensors({100, 3 * leaf_size_bytes, 100});
  tensors.make_direct(1);
  Bytes packed(tensors.all().size() + 16);
  std::byte* const aligned = packed.data() + (16 - misalignment(packed.data())) % 16;
  SegmentsJob job = tensors.job(0, tensors.all().size(), aligned);
  job.skips_direct = true;
  EXPECT_EQ(move<Direction::pack>(job), digests_of(tensors.all()));
  EXPECT_EQ(std::memcmp(aligned, tensors.all().data(), leaf_size_bytes), 0);
  const Bytes untouched(2 * leaf_size_bytes);
  EXPECT_EQ(std::memcmp(aligned + leaf_size_bytes, untouched.data(), untouched.size()), 0);
  EXPECT_EQ(std::memcmp(aligned + 3 * leaf_size_bytes, tensors.all().data() + 3 * leaf_size_bytes, 200), 0);
}

}  // namespace
}  // namespace ckpt::kernels::device
