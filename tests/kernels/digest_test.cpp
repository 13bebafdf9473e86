// Digests of leaves and pieces against the xxHash library, for every instruction set of this processor.
#include "kernels/digest.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>

#include "random_bytes.hpp"

namespace ckpt::kernels {
namespace {

class DigestOnIsa : public testing::TestWithParam<Isa> {};

INSTANTIATE_TEST_SUITE_P(Supported, DigestOnIsa, testing::ValuesIn(supported_isas()),
                         [](const auto& isa) { return std::string(name(isa.param)); });

TEST_P(DigestOnIsa, LeafOfEveryLengthMatchesXxhash) {
  const auto bytes = random_bytes(1, leaf_size_bytes);
  for (std::size_t size = 0; size <= 2100; ++size) {
    ASSERT_EQ(leaf_digest(bytes.data(), size, GetParam()), XXH3_64bits(bytes.data(), size)) << size;
  }
  for (std::size_t size = leaf_size_bytes - 1100; size <= leaf_size_bytes; ++size) {
    ASSERT_EQ(leaf_digest(bytes.data(), size, GetParam()), XXH3_64bits(bytes.data(), size)) << size;
  }
}

TEST_P(DigestOnIsa, LeafAtEveryAlignmentMatchesXxhash) {
  const auto bytes = random_bytes(2, leaf_size_bytes + 64);
  for (std::size_t shift = 0; shift < 64; ++shift) {
    ASSERT_EQ(leaf_digest(bytes.data() + shift, leaf_size_bytes, GetParam()),
              XXH3_64bits(bytes.data() + shift, leaf_size_bytes))
        << shift;
  }
}

TEST_P(DigestOnIsa, LeavesCoverExactlyThePiece) {
  const auto bytes = random_bytes(3, 3 * leaf_size_bytes + 300);
  for (std::size_t length : {std::size_t{0}, std::size_t{1}, leaf_size_bytes - 1, leaf_size_bytes, leaf_size_bytes + 1,
                             3 * leaf_size_bytes, 3 * leaf_size_bytes + 300}) {
    const std::uint64_t untouched = 0x5EED;
    std::vector<std::uint64_t> digests(5, untouched);
    digest_leaves(bytes.data(), length, digests.data(), GetParam());
    for (std::size_t leaf = 0; leaf < leaf_count(length); ++leaf) {
      ASSERT_EQ(digests[leaf], XXH3_64bits(bytes.data() + leaf * leaf_size_bytes, leaf_length(length, leaf)));
    }
    ASSERT_EQ(digests[leaf_count(length)], untouched);
  }
}

TEST_P(DigestOnIsa, NullIsAnEmptyLeaf) { EXPECT_EQ(leaf_digest(nullptr, 0, GetParam()), XXH3_64bits("", 0)); }

TEST(Digest, LeafCountRoundsUp) {
  EXPECT_EQ(leaf_count(0), 0U);
  EXPECT_EQ(leaf_count(1), 1U);
  EXPECT_EQ(leaf_count(leaf_size_bytes), 1U);
  EXPECT_EQ(leaf_count(leaf_size_bytes + 1), 2U);
  EXPECT_EQ(leaf_length(leaf_size_bytes + 1, 0), leaf_size_bytes);
  EXPECT_EQ(leaf_length(leaf_size_bytes + 1, 1), 1U);
}

TEST(Digest, RootDigestIsXxhashOfLeafDigestsAndLength) {
  const std::vector<std::uint64_t> leaves = {1, 2, 0xFFFFFFFFFFFFFFFFU};
  const std::vector<std::uint64_t> whole = {1, 2, 0xFFFFFFFFFFFFFFFFU, 150000};
  EXPECT_EQ(root_digest(leaves, 150000), XXH3_64bits(whole.data(), 32));
}

// What is on disk and on the wire must never change: these constants are part of the format.
TEST(Digest, MatchesKnownRootDigests) {
  EXPECT_EQ(root_digest({}, 0), 0xC77B3ABB6F87ACD9U);
  std::vector<unsigned char> piece(2 * leaf_size_bytes + 1000);
  for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<unsigned char>(i * 7 + i / 251);
  std::vector<std::uint64_t> leaves(leaf_count(piece.size()));
  digest_leaves(piece.data(), piece.size(), leaves.data());
  EXPECT_EQ(leaves, (std::vector<std::uint64_t>{0x0D88401380DF353CU, 0xB53AD7B77DF96087U, 0xD8578C50C073A25DU}));
  EXPECT_EQ(root_digest(leaves, piece.size()), 0x3AEAC97D31B0B77DU);
}

TEST(Digest, RootDigestDependsOnLeavesTheirOrderAndLength) {
  const std::uint64_t root = root_digest(std::vector<std::uint64_t>{1, 2}, 100000);
  EXPECT_NE(root, root_digest(std::vector<std::uint64_t>{2, 1}, 100000));
  EXPECT_NE(root, root_digest(std::vector<std::uint64_t>{1, 3}, 100000));
  EXPECT_NE(root, root_digest(std::vector<std::uint64_t>{1, 2}, 100001));
}

}  // namespace
}  // namespace ckpt::kernels
