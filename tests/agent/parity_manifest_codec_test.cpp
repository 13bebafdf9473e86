#include "agent/pieces/parity_manifest_codec.hpp"

#include <gtest/gtest.h>

#include "agent/pieces/piece_index.hpp"
#include "base/error.hpp"
#include "support.hpp"

namespace ckpt::agent {
namespace {

using testing::make_piece;

KeptManifests kept_of(std::uint32_t rows, std::uint32_t member, std::uint32_t members) {
  KeptManifests kept{rows, member, {}};
  for (std::uint32_t m = 0; m < members; ++m)
    kept.members.emplace_back(make_piece("shard" + std::string(m, 'x'), {1, 2}, m * 70'001).manifest);
  return kept;
}

bool is_same(const KeptManifests& one, const KeptManifests& other) {
  return one.rows == other.rows && one.member == other.member && one.members == other.members;
}

// Refused, or the one text of what it means: no two texts say the same.
void expect_refused_or_canonical(const std::string& text) {
  try {
    EXPECT_EQ(encode(decode_kept_manifests(text)), text);
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), CKPT_ERR_CORRUPT);
  }
}

TEST(ParityManifestCodec, DecodesEncodedManifests) {
  for (std::uint32_t members = 2; members <= 8; ++members) {
    for (std::uint32_t rows = 1; rows < members && rows <= 4; ++rows) {
      const auto kept = kept_of(rows, members - 1, members);
      EXPECT_TRUE(is_same(decode_kept_manifests(encode(kept)), kept));
    }
  }
}

TEST(ParityManifestCodec, DecodesAMemberWithoutAShard) {
  for (std::uint32_t without = 0; without < 5; ++without) {
    auto kept = kept_of(2, 1, 5);
    kept.members[without].reset();
    EXPECT_TRUE(is_same(decode_kept_manifests(encode(kept)), kept));
    EXPECT_EQ(parity_manifest_of(kept).sources[without], core::ParitySource());
  }
}

TEST(ParityManifestCodec, DerivesTheParityManifestFromTheShardsManifests) {
  const auto kept = kept_of(2, 3, 5);
  const auto parity_manifest = parity_manifest_of(kept);
  EXPECT_EQ(parity_manifest.rows, 2u);
  EXPECT_EQ(parity_manifest.member, 3u);
  ASSERT_EQ(parity_manifest.sources.size(), 5u);
  for (std::size_t m = 0; m < 5; ++m) {
    const auto piece = piece_info(*kept.members[m]);
    EXPECT_EQ(parity_manifest.sources[m],
              (core::ParitySource{piece.shard, piece.length_bytes, piece.layout_bytes, piece.root_digest}));
  }
}

TEST(ParityManifestCodec, TheSizeIsKnownFromTheParityManifest) {
  for (std::uint32_t members = 2; members <= 8; ++members) {
    auto kept = kept_of(1, 0, members);
    EXPECT_EQ(encoded_bytes(parity_manifest_of(kept)), encode(kept).size());
    kept.members.back().reset();
    EXPECT_EQ(encoded_bytes(parity_manifest_of(kept)), encode(kept).size());
  }
}

TEST(ParityManifestCodec, EveryPrefixAndEveryLongerTextIsRefused) {
  const std::string text = encode(kept_of(1, 1, 3));
  for (std::size_t size = 0; size < text.size(); ++size)
    EXPECT_THROW(decode_kept_manifests(std::string_view(text).substr(0, size)), Failure) << size;
  EXPECT_THROW(decode_kept_manifests(text + '\0'), Failure);
}

TEST(ParityManifestCodec, EveryFlippedBitIsRefusedOrDecodesToAnotherGroup) {
  const std::string text = encode(kept_of(1, 1, 3));
  constexpr std::size_t rows_and_member_bytes = 8;  // other values of these may be a group's
  for (std::size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = text;
      other[at] = static_cast<char>(other[at] ^ 1 << bit);
      if (at < rows_and_member_bytes)
        expect_refused_or_canonical(other);
      else
        EXPECT_THROW(decode_kept_manifests(other), Failure) << at;
    }
  }
}

TEST(ParityManifestCodec, RefusesAnImpossibleGroup) {
  EXPECT_NO_THROW(decode_kept_manifests(encode(kept_of(2, 2, 3))));
  for (const auto& impossible :
       {kept_of(0, 0, 3), kept_of(3, 0, 3), kept_of(5, 0, 7), kept_of(2, 3, 3), kept_of(1, 0, 1), kept_of(1, 0, 65)})
    EXPECT_THROW(decode_kept_manifests(encode(impossible)), Failure);
}

}  // namespace
}  // namespace ckpt::agent
