// The kernel that makes leaves of parity with their digests, run on the host: against the coder's slow reference and
// the digests of the CPU, over numbers and lengths of sources.
#include "kernels/encode_body.hpp"

#include <gtest/gtest.h>

#include "parity_support.hpp"

namespace ckpt::kernels::device {
namespace {

// Memory for whole leaves at a 16-byte boundary, after which nothing may be read. Bytes beyond `bytes` are no zeros.
class WholeLeaves {
 public:
  explicit WholeLeaves(Bytes bytes) : size_bytes_(bytes.size()), memory_(padded(std::move(bytes))) {}
  const unsigned char* data() const { return reinterpret_cast<const unsigned char*>(memory_.data()); }
  std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  static Bytes padded(Bytes bytes) {
    bytes.resize(leaf_count(bytes.size()) * leaf_size_bytes, std::byte{0x5A});
    return bytes;
  }
  std::uint64_t size_bytes_;
  Fenced memory_;
};

// Makes one row of parity, and checks it and all digests.
void expect_row(std::size_t row, const std::vector<std::size_t>& sizes_bytes, std::size_t leaves) {
  const std::size_t columns = sizes_bytes.size(), length = leaves * leaf_size_bytes;
  std::vector<Bytes> pieces;
  std::vector<WholeLeaves> sources;
  for (std::size_t i = 0; i < columns; ++i) {
    pieces.push_back(random_bytes(i + 1, sizes_bytes[i]));
    sources.emplace_back(pieces.back());
  }
  const WholeLeaves parity(Bytes(length, std::byte{0x77}));
  std::vector<std::uint64_t> digests(leaves * (columns + 1), 1);
  EncodeJob job{};
  job.source_count = static_cast<std::uint32_t>(columns);
  Matrix matrix{1, columns, {}};
  for (std::size_t i = 0; i < columns; ++i) {
    job.sources[i] = {sources[i].data(), sources[i].size_bytes()};
    job.coefficients[i] = ErasureCode::coefficient(row, i);
    matrix.coefficients.push_back(job.coefficients[i]);
  }
  job.parity = const_cast<unsigned char*>(parity.data());
  job.digests = digests.data();
  job.keys = make_digest_keys();
  for (std::size_t leaf = 0; leaf < leaves; ++leaf)
    row == 0 ? encode_leaf_on_host<true>(job, leaf) : encode_leaf_on_host<false>(job, leaf);
  const Bytes expected = slow_row(matrix, 0, pieces, length);
  EXPECT_EQ(std::memcmp(parity.data(), expected.data(), length), 0);
  pieces.push_back(expected);
  for (std::size_t i = 0; i <= columns; ++i) {
    auto of_piece = digests_of(pieces[i]);
    of_piece.resize(leaves);  // a source that has ended has the digest 0
    for (std::size_t leaf = 0; leaf < leaves; ++leaf)
      EXPECT_EQ(digests[leaf * (columns + 1) + i], of_piece[leaf]) << "source " << i << ", leaf " << leaf;
  }
}

TEST(EncodeBody, ComputesTheSumAndDigestsOfAllSources) {
  for (const std::size_t row : {0u, 1u, 3u}) {
    expect_row(row, {2 * leaf_size_bytes}, 2);
    expect_row(row, {3 * leaf_size_bytes, 3 * leaf_size_bytes, 3 * leaf_size_bytes}, 3);
  }
}

// Where XXH3 has other formulas, where a round or a stripe ends, and where a source has ended leaves before the others.
TEST(EncodeBody, AcceptsSourcesOfAnyLength) {
  for (const std::size_t row : {0u, 2u})
    for (const std::size_t odd :
         {0u, 1u, 3u, 8u, 16u, 17u, 128u, 129u, 240u, 241u, 255u, 1023u, 1024u, 1025u, 8192u, 40'001u, 65'535u})
      expect_row(row, {2 * leaf_size_bytes, odd, leaf_size_bytes + odd}, 2);
}

TEST(EncodeBody, AcceptsAsManySourcesAsAStripeHas) {
  expect_row(0, std::vector<std::size_t>(max_stripe_pieces - 1, leaf_size_bytes), 1);
  expect_row(1, std::vector<std::size_t>(max_stripe_pieces - 1, leaf_size_bytes - 7), 1);
}

}  // namespace
}  // namespace ckpt::kernels::device
