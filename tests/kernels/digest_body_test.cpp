// The GPU's digest body, run on the host lane by lane, against the xxHash library.
#include "kernels/digest_body.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include "parity_support.hpp"

namespace ckpt::kernels::device {
namespace {

// What the kernel does for one leaf.
std::uint64_t digest_of(const DigestJob& job, std::uint64_t index) {
  const DeviceLeaf leaf = leaf_of(job, index);
  if (is_short(leaf)) return digest_short(job.keys, leaf);
  std::uint64_t sums[lanes_per_leaf];
  for (unsigned lane = 0; lane < lanes_per_leaf; ++lane) sums[lane] = accumulate_lane(job, job.keys.words, leaf, lane);
  return merge_lanes(job.keys, sums, leaf.size_bytes);
}

TEST(DigestBody, LeafOfEveryLengthEqualsWhatXxhashSays) {
  const Bytes bytes = random_bytes(1, leaf_size_bytes);
  const auto expect_at = [&](std::size_t length) {
    const Fenced memory(Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)));
    EXPECT_EQ(digest_of(make_digest_job(memory.data(), length, nullptr), 0), XXH3_64bits(bytes.data(), length))
        << length;
  };
  for (std::size_t length = 1; length <= 2100; ++length) expect_at(length);
  for (std::size_t length = leaf_size_bytes - 130; length <= leaf_size_bytes; ++length) expect_at(length);
}

TEST(DigestBody, LeafAtEveryAlignmentEqualsWhatXxhashSays) {
  const Bytes bytes = random_bytes(2, 5000);
  for (std::size_t shift = 0; shift < 16; ++shift) {
    for (const std::size_t length : {7, 100, 200, 300, 4000}) {
      EXPECT_EQ(digest_of(make_digest_job(bytes.data() + shift, length, nullptr), 0),
                XXH3_64bits(bytes.data() + shift, length));
    }
  }
}

TEST(DigestBody, EveryLeafOfAPieceIsItsOwn) {
  const Bytes bytes = random_bytes(3, 2 * leaf_size_bytes + 333);
  const DigestJob job = make_digest_job(bytes.data(), bytes.size(), nullptr);
  const auto expected = digests_of(bytes);
  for (std::size_t leaf = 0; leaf < expected.size(); ++leaf) EXPECT_EQ(digest_of(job, leaf), expected[leaf]);
}

}  // namespace
}  // namespace ckpt::kernels::device
