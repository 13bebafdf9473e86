// Every way to lose members, shards or parity of a group: what can be known is made again, and nothing else ends well.
#include <gtest/gtest.h>

#include <bit>

#include "parity_group.hpp"
#include "tests/placement/positions.hpp"

namespace ckpt::agent {
namespace {

using core::FetchResult;
using testing::leaf;
using testing::ParityGroup;
using Name = ParityGroup::Name;

// All different, none a multiple of anything, one empty; segments of one or two leaves.
std::vector<std::size_t> unequal_lengths(std::uint32_t members, std::uint32_t rows) {
  std::vector<std::size_t> lengths;
  const std::size_t longest = (members - rows) * leaf + leaf / 2;
  for (std::uint32_t m = 0; m < members; ++m) lengths.push_back(longest * (members - m) / members + 3 * m + 1);
  lengths[members / 2] = 0;
  return lengths;
}
std::vector<std::size_t> equal_lengths(std::uint32_t members, std::uint32_t rows) {
  return std::vector<std::size_t>(members, (members - rows) * leaf);
}

enum class Losing { nodes, shards, parity };

std::vector<Name> lost_pieces(std::uint32_t subset, Losing losing) {
  std::vector<Name> names;
  for (std::uint32_t m = 0; subset >> m != 0; ++m) {
    if ((subset >> m & 1) == 0) continue;
    if (losing != Losing::parity) names.push_back({m, false});
    if (losing != Losing::shards) names.push_back({m, true});
  }
  return names;
}

// Leaf by leaf, from what is stored where: at most `rows` positions of a stripe are unknown wherever the piece has
// bytes; and somebody has the manifests.
bool can_be_made(const ParityGroup& group, Name wanted, const std::vector<Name>& lost) {
  const auto layout = core::layout_of(group.parity_manifest);
  const auto is_lost = [&](Name name) { return std::find(lost.begin(), lost.end(), name) != lost.end(); };
  const auto names = group.all();
  const auto is_left = [&](Name name) { return !is_lost(name); };
  const bool any_parity =
      std::any_of(names.begin(), names.end(), [&](Name name) { return name.is_parity && is_left(name); });
  const bool all_shards =
      std::all_of(names.begin(), names.end(), [&](Name name) { return name.is_parity || is_left(name); });
  if (!any_parity && !all_shards) return false;
  for (std::uint32_t stripe = 0; stripe < layout.members(); ++stripe) {
    const std::uint32_t own = placement::position_of(layout, stripe, wanted.member);
    if (layout.is_parity(own) != wanted.is_parity) continue;
    for (std::uint64_t at = 0; at < layout.stored_bytes(stripe, own); at += leaf) {
      std::uint32_t unknown = 0;
      for (std::uint32_t position = 0; position < layout.members(); ++position) {
        const Name name{layout.member_at(stripe, position), layout.is_parity(position)};
        unknown += is_lost(name) && at < layout.stored_bytes(stripe, position);
      }
      if (unknown > layout.parity()) return false;
    }
  }
  return true;
}

class CodingSubsets : public ::testing::TestWithParam<std::pair<std::uint32_t, std::uint32_t>> {
 protected:
  // Everything of it, each from what is left alone.
  static void lose_and_make(ParityGroup& group, const std::vector<Name>& lost) {
    for (const Name name : lost) group.lose(name);
    for (const Name name : lost) {
      const bool expected = can_be_made(group, name, lost);
      ++(expected ? made : refused);
      const auto outcome = group.make(name);
      ASSERT_EQ(outcome.result, expected ? FetchResult::complete : FetchResult::failed)
          << (name.is_parity ? "parity of " : "shard of ") << name.member;
      ASSERT_EQ(group.is_made_again(name), expected);
      ASSERT_EQ(group.is_sealed(name), expected);
      ASSERT_TRUE(outcome.damaged.empty());
    }
    for (const Name name : lost) group.put(name);
  }
  static void lose_subsets_of(std::uint32_t size, ParityGroup& group, std::initializer_list<Losing> ways) {
    for (std::uint32_t subset = 1; subset < 1u << group.members(); ++subset) {
      if (static_cast<std::uint32_t>(std::popcount(subset)) != size) continue;
      for (const Losing losing : ways) {
        SCOPED_TRACE("subset " + std::to_string(subset) + ", way " + std::to_string(static_cast<int>(losing)));
        ASSERT_NO_FATAL_FAILURE(lose_and_make(group, lost_pieces(subset, losing)));
      }
    }
  }
  void SetUp() override { made = refused = 0; }

  static inline std::size_t made = 0, refused = 0;
};

constexpr auto all_ways = {Losing::nodes, Losing::shards, Losing::parity};

TEST_P(CodingSubsets, DecodesAsManyLossesAsParityRowsByteForByte) {
  const auto [members, rows] = GetParam();
  ParityGroup group(unequal_lengths(members, rows), rows);
  group.encode();
  for (std::uint32_t size = 1; size <= rows; ++size) lose_subsets_of(size, group, all_ways);
  EXPECT_GT(made, 0u);
  EXPECT_EQ(refused, 0u);
  EXPECT_TRUE(group.is_quiet());
}

TEST_P(CodingSubsets, RefusesOneLossMoreThanParityRows) {
  const auto [members, rows] = GetParam();
  ParityGroup group(equal_lengths(members, rows), rows);
  group.encode();
  lose_subsets_of(rows + 1, group, {Losing::nodes});
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(made, 0u);
  EXPECT_TRUE(group.is_quiet());
}

// Where shards are short or only a part of each member is lost, some come back even then.
TEST_P(CodingSubsets, DecodesBeyondTheToleranceOnlyBytesThatAreDetermined) {
  const auto [members, rows] = GetParam();
  ParityGroup group(unequal_lengths(members, rows), rows);
  group.encode();
  lose_subsets_of(rows + 1, group, all_ways);
  EXPECT_GT(made, 0u);
  EXPECT_GT(refused, 0u);
  EXPECT_TRUE(group.is_quiet());
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> all_groups() {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> groups;
  for (std::uint32_t members = 2; members <= CKPT_TEST_MEMBERS; ++members) {
    for (std::uint32_t rows = 1; rows <= 3 && rows < members; ++rows) groups.emplace_back(members, rows);
  }
  return groups;
}
INSTANTIATE_TEST_SUITE_P(Groups, CodingSubsets, ::testing::ValuesIn(all_groups()), [](const auto& test) {
  return std::to_string(test.param.first) + "members" + std::to_string(test.param.second) + "rows";
});

}  // namespace
}  // namespace ckpt::agent
