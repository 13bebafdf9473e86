// Gather and scatter over segment lists of all shapes: the packed bytes, their digests, and that nothing else is
// touched.
#include "kernels/copy_digest.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "random_bytes.hpp"

namespace ckpt::kernels {
namespace {

constexpr std::byte guard{0xA5};
constexpr std::size_t guard_size_bytes = 4096;

struct AlignedFree {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{4096}); }
};

// Page-aligned memory with a guard behind it.
class Packed {
 public:
  explicit Packed(std::size_t size_bytes)
      : size_bytes_(size_bytes),
        memory_(static_cast<std::byte*>(::operator new[](size_bytes + guard_size_bytes, std::align_val_t{4096}))) {
    std::fill_n(memory_.get(), size_bytes + guard_size_bytes, guard);
  }
  std::byte* data() { return memory_.get(); }
  std::vector<std::byte> bytes() const { return {memory_.get(), memory_.get() + size_bytes_}; }
  bool guard_intact() const {
    const std::byte* end = memory_.get() + size_bytes_;
    return std::all_of(end, end + guard_size_bytes, [](std::byte b) { return b == guard; });
  }

 private:
  std::size_t size_bytes_;
  std::unique_ptr<std::byte[], AlignedFree> memory_;
};

// Tensors of given sizes in one buffer, each after a gap of 1 to 64 guard bytes, so that they have all alignments.
class Tensors {
 public:
  Tensors(std::uint64_t seed, const std::vector<std::size_t>& sizes) {
    std::mt19937_64 random(seed);
    std::vector<std::size_t> starts;
    std::size_t end = 0;
    for (std::size_t size : sizes) {
      starts.push_back(end + 1 + random() % 64);
      end = starts.back() + size;
    }
    buffer_.assign(end + 64, guard);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto bytes = random_bytes(seed + i, sizes[i]);
      std::copy(bytes.begin(), bytes.end(), buffer_.begin() + static_cast<std::ptrdiff_t>(starts[i]));
      packed_.insert(packed_.end(), bytes.begin(), bytes.end());
      sources_.push_back({buffer_.data() + starts[i], sizes[i]});
      targets_.push_back({buffer_.data() + starts[i], sizes[i]});
    }
  }

  const std::vector<Source>& sources() const { return sources_; }
  const std::vector<Target>& targets() const { return targets_; }
  const std::vector<std::byte>& packed() const { return packed_; }
  const std::vector<std::byte>& buffer() const { return buffer_; }

  void erase() {
    for (const Target& target : targets_) std::fill_n(target.data, target.size_bytes, std::byte{0});
  }

 private:
  std::vector<std::byte> buffer_;
  std::vector<std::byte> packed_;
  std::vector<Source> sources_;
  std::vector<Target> targets_;
};

std::vector<std::uint64_t> library_digests(const std::vector<std::byte>& piece) {
  std::vector<std::uint64_t> digests;
  for (std::size_t leaf = 0; leaf < leaf_count(piece.size()); ++leaf) {
    digests.push_back(XXH3_64bits(piece.data() + leaf * leaf_size_bytes, leaf_length(piece.size(), leaf)));
  }
  return digests;
}

std::vector<std::size_t> random_sizes(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::size_t> sizes;
  const std::size_t count = 1 + random() % 40;
  for (std::size_t i = 0; i < count; ++i) {
    switch (random() % 6) {
      case 0:
        sizes.push_back(0);
        break;
      case 1:
        sizes.push_back(1);
        break;
      case 2:
        sizes.push_back(random() % 130);
        break;
      case 3:
        sizes.push_back(random() % 5000);
        break;
      case 4:
        sizes.push_back(64 * (random() % 40));
        break;
      default:
        sizes.push_back(random() % (3 * leaf_size_bytes));
    }
  }
  return sizes;
}

class CopyOnIsa : public testing::TestWithParam<Isa> {
 protected:
  // Gathers by ranges of `leaves_per_call` and checks everything; the piece and its digests are compared whole.
  void expect_gathers(const Tensors& tensors, std::size_t leaves_per_call) {
    const auto offsets = segment_offsets(std::span<const Source>(tensors.sources()));
    ASSERT_EQ(offsets.back(), tensors.packed().size());
    Packed piece(offsets.back());
    const std::size_t leaves = leaf_count(offsets.back());
    std::vector<std::uint64_t> digests(leaves);
    for (std::size_t end = leaves; end > 0;) {  // backwards: no call leans on the one before
      const std::size_t first = end > leaves_per_call ? end - leaves_per_call : 0;
      gather_leaves(tensors.sources(), offsets, piece.data(), first, end, digests.data(), GetParam());
      ASSERT_EQ(verify_segments(tensors.sources(), offsets, first, end, digests.data(), GetParam()), std::nullopt);
      end = first;
    }
    ASSERT_EQ(digests, library_digests(tensors.packed()));
    ASSERT_TRUE(piece.bytes() == tensors.packed());
    ASSERT_TRUE(piece.guard_intact());
  }

  void expect_scatters(Tensors& tensors, std::size_t leaves_per_call) {
    const auto offsets = segment_offsets(std::span<const Target>(tensors.targets()));
    const auto whole = tensors.buffer();
    Packed piece(offsets.back());
    std::copy(tensors.packed().begin(), tensors.packed().end(), piece.data());
    const auto expected = library_digests(tensors.packed());
    tensors.erase();
    for (std::size_t end = expected.size(); end > 0;) {
      const std::size_t first = end > leaves_per_call ? end - leaves_per_call : 0;
      ASSERT_EQ(scatter_leaves(tensors.targets(), offsets, piece.data(), first, end, expected.data(), GetParam()),
                std::nullopt);
      end = first;
    }
    ASSERT_TRUE(tensors.buffer() == whole);  // gaps between tensors included
  }
};

INSTANTIATE_TEST_SUITE_P(Supported, CopyOnIsa, testing::ValuesIn(supported_isas()),
                         [](const auto& isa) { return std::string(name(isa.param)); });

TEST_P(CopyOnIsa, RandomSegmentListsGatherAndScatter) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Tensors tensors(seed, random_sizes(seed));
    ASSERT_NO_FATAL_FAILURE(expect_gathers(tensors, 1000));
    ASSERT_NO_FATAL_FAILURE(expect_scatters(tensors, 1000));
  }
}

TEST_P(CopyOnIsa, SplitByLeafRangesGivesTheSame) {
  for (std::size_t leaves_per_call : {1, 2, 3}) {
    Tensors tensors(leaves_per_call, {0, 1, 200000, 0, 63, 65, 3 * leaf_size_bytes, 1, 1, 0, 70001, 0});
    ASSERT_NO_FATAL_FAILURE(expect_gathers(tensors, leaves_per_call));
    ASSERT_NO_FATAL_FAILURE(expect_scatters(tensors, leaves_per_call));
  }
}

TEST_P(CopyOnIsa, EveryShortLengthGathersAndScatters) {
  for (std::size_t length = 0; length <= 2100; ++length) {
    SCOPED_TRACE(length);
    Tensors tensors(length, {length / 3, length - length / 3});
    ASSERT_NO_FATAL_FAILURE(expect_gathers(tensors, 1));
    ASSERT_NO_FATAL_FAILURE(expect_scatters(tensors, 1));
  }
}

TEST_P(CopyOnIsa, LengthsAroundLeafBoundariesGatherAndScatter) {
  for (std::size_t leaves : {1, 2}) {
    // From just below the boundary to a last leaf just above the library's short forms.
    const std::size_t step = leaves == 1 ? 1 : 7;
    for (std::size_t length = leaves * leaf_size_bytes - 70; length <= leaves * leaf_size_bytes + 260; length += step) {
      SCOPED_TRACE(length);
      Tensors tensors(length, {1000 + length % 64, length - 1000 - length % 64});
      ASSERT_NO_FATAL_FAILURE(expect_gathers(tensors, 2));
      ASSERT_NO_FATAL_FAILURE(expect_scatters(tensors, 2));
    }
  }
}

TEST_P(CopyOnIsa, SegmentsOfOneByteGatherAndScatter) {
  Tensors tensors(7, std::vector<std::size_t>(leaf_size_bytes + 777, 1));
  ASSERT_NO_FATAL_FAILURE(expect_gathers(tensors, 1));
  ASSERT_NO_FATAL_FAILURE(expect_scatters(tensors, 1));
}

TEST_P(CopyOnIsa, EmptySegmentListsWriteNothing) {
  for (const std::vector<Source>& sources : {std::vector<Source>{}, std::vector<Source>(3, Source{nullptr, 0})}) {
    const auto offsets = segment_offsets(std::span<const Source>(sources));
    ASSERT_EQ(offsets.size(), sources.size() + 1);
    ASSERT_EQ(offsets.back(), 0U);
    Packed piece(0);
    gather_leaves(sources, offsets, piece.data(), 0, leaf_count(0), nullptr, GetParam());
    ASSERT_TRUE(piece.guard_intact());
  }
  const std::vector<Target> targets(3, Target{nullptr, 0});
  EXPECT_EQ(
      scatter_leaves(targets, segment_offsets(std::span<const Target>(targets)), nullptr, 0, 0, nullptr, GetParam()),
      std::nullopt);
}

// One leaf of a piece is damaged by one bit; lengths make the last leaf short, long, and whole.
TEST_P(CopyOnIsa, FindsAFlippedBitInAnyLeafAndWritesNothingAfterIt) {
  std::mt19937_64 random(11);
  for (std::size_t rest : {std::size_t{100}, std::size_t{5003}, leaf_size_bytes}) {
    Tensors tensors(rest, {leaf_size_bytes + 13, 2 * leaf_size_bytes - 13, rest});
    const auto offsets = segment_offsets(std::span<const Target>(tensors.targets()));
    const auto expected = library_digests(tensors.packed());
    Packed piece(offsets.back());
    std::copy(tensors.packed().begin(), tensors.packed().end(), piece.data());
    for (std::size_t leaf = 0; leaf < expected.size(); ++leaf) {
      const std::size_t at = leaf * leaf_size_bytes + random() % leaf_length(offsets.back(), leaf);
      const auto bit = static_cast<std::byte>(1U << (random() % 8));
      piece.data()[at] ^= bit;
      EXPECT_EQ(verify_leaves(piece.data(), offsets.back(), 0, expected.size(), expected.data(), GetParam()), leaf);
      EXPECT_EQ(verify_leaves(piece.data(), offsets.back(), 0, leaf, expected.data(), GetParam()), std::nullopt);

      tensors.erase();
      EXPECT_EQ(
          scatter_leaves(tensors.targets(), offsets, piece.data(), 0, expected.size(), expected.data(), GetParam()),
          leaf);
      EXPECT_EQ(verify_segments(tensors.sources(), offsets, 0, expected.size(), expected.data(), GetParam()), leaf);
      EXPECT_EQ(verify_segments(tensors.sources(), offsets, 0, leaf, expected.data(), GetParam()), std::nullopt);
      Packed written(offsets.back());
      std::vector<std::uint64_t> digests(expected.size());
      gather_leaves(tensors.sources(), offsets, written.data(), 0, expected.size(), digests.data(), GetParam());
      const auto bytes = written.bytes();
      const auto good = static_cast<std::ptrdiff_t>(leaf * leaf_size_bytes);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + good, tensors.packed().begin()));
      const auto rest_begin = static_cast<std::ptrdiff_t>(std::min(offsets.back(), (leaf + 1) * leaf_size_bytes));
      EXPECT_TRUE(std::all_of(bytes.begin() + rest_begin, bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
      piece.data()[at] ^= bit;
    }
    EXPECT_EQ(verify_leaves(piece.data(), offsets.back(), 0, expected.size(), expected.data(), GetParam()),
              std::nullopt);
  }
}

}  // namespace
}  // namespace ckpt::kernels
