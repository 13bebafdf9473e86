// Lost, corrupt, restored: with real bytes, over all subsets of small groups.
#include "placement/parity_recovery.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <map>
#include <numeric>
#include <optional>

#include "placement/odds/sampling.hpp"
#include "tests/placement/parity_group.hpp"
#include "tests/placement/positions.hpp"
#include "tests/placement/support.hpp"

namespace ckpt::placement {
namespace {

constexpr std::uint64_t unit = 16;

std::vector<std::uint32_t> members_of(std::uint32_t mask) {
  std::vector<std::uint32_t> members;
  for (std::uint32_t member = 0; member < 32; ++member) {
    if (mask >> member & 1) members.push_back(member);
  }
  return members;
}

// Unequal, one empty, one longer than all others together, none divisible by anything.
std::vector<std::uint64_t> odd_lengths(std::uint32_t members) {
  const std::vector<std::uint64_t> lengths = {311, 1009, 0, 97, 1, 311, 307, 53};
  return {lengths.begin(), lengths.begin() + members};
}

struct Shape {
  std::uint32_t members, parity;
  std::vector<std::uint64_t> lengths;
};

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (std::uint32_t parity = 1; parity <= 3; ++parity) {
    for (std::uint32_t members = parity + 1; members <= 8; ++members) {
      all.push_back({members, parity, odd_lengths(members)});
      all.push_back({members, parity, std::vector<std::uint64_t>(members, unit * (members - parity))});
    }
  }
  return all;
}

TEST(ParityRecovery, RestoresEverySubsetOfMembersWithinTheTolerance) {
  for (const auto& [members, parity, lengths] : shapes()) {
    const ParityGroup whole(lengths, parity, unit, members * 10 + parity);
    for (std::uint32_t mask = 0; mask < (1u << members); ++mask) {
      if (static_cast<std::uint32_t>(std::popcount(mask)) > parity) continue;
      ParityGroup group = whole;
      for (const auto member : members_of(mask)) group.erase(member);
      group.restore(members_of(mask));
      ASSERT_TRUE(group == whole) << members << " members, " << parity << " parity, lost " << mask;
    }
  }
}

// Members lose their shards, their parity, or both, each on its own.
TEST(ParityRecovery, RestoresEverySubsetOfPiecesThatStripesTolerate) {
  for (const auto& [members, parity, lengths] : shapes()) {
    if (members > 6) continue;
    ParityGroup whole(lengths, parity, unit, members * 10 + parity);
    const ParityLayout& layout = whole.layout();
    for (std::uint32_t data_mask = 0; data_mask < (1u << members); ++data_mask) {
      for (std::uint32_t parity_mask = 0; parity_mask < (1u << members); ++parity_mask) {
        LostPieces lost;
        for (std::uint32_t stripe = 0; stripe < members; ++stripe) {
          for (std::uint32_t member = 0; member < members; ++member) {
            const bool is_parity = layout.is_parity(position_of(layout, stripe, member));
            if ((is_parity ? parity_mask : data_mask) >> member & 1) lost.add(stripe, member);
          }
        }
        if (static_cast<std::uint32_t>(std::popcount(data_mask | parity_mask)) > parity) continue;
        for (std::uint32_t member = 0; member < members; ++member) {
          const DecodePlan plan = plan_shard(layout, lost, member, {0, lengths[member]});
          ASSERT_TRUE(plan.lost.empty());
          ASSERT_TRUE(whole.play(plan, lengths[member]) == whole.shards()[member]);
        }
      }
    }
  }
}

// What a plan has no way to, by counting: more than `parity` of the positions that have bytes there are lost.
bool is_beyond(const ParityLayout& layout, std::uint32_t lost_mask, std::uint32_t stripe, std::uint64_t at) {
  std::uint32_t gone = 0;
  for (const auto member : members_of(lost_mask)) {
    gone += at < layout.stored_bytes(stripe, position_of(layout, stripe, member)) ? 1 : 0;
  }
  return gone > layout.parity();
}

TEST(ParityRecovery, ReportsExactlyTheUndeterminedBytesBeyondTheTolerance) {
  for (const auto& [members, parity, lengths] : shapes()) {
    ParityGroup whole(lengths, parity, unit, members * 10 + parity);
    const ParityLayout& layout = whole.layout();
    for (std::uint32_t mask = 0; mask < (1u << members); ++mask) {
      if (static_cast<std::uint32_t>(std::popcount(mask)) != parity + 1) continue;
      LostPieces lost;
      for (const auto member : members_of(mask)) lose_member(lost, layout, member);
      for (const auto member : members_of(mask)) {
        std::vector<bool> expected(lengths[member]);
        for (std::uint32_t column = 0; column < layout.columns(); ++column) {
          const ByteRange segment = layout.segment(member, column);
          for (std::uint64_t i = 0; i < segment.size_bytes; ++i) {
            expected[segment.first_byte + i] = is_beyond(layout, mask, layout.stripe_of(member, column), i);
          }
        }
        const DecodePlan plan = plan_shard(layout, lost, member, {0, lengths[member]});
        std::vector<bool> found(lengths[member]);
        for (const ByteRange range : plan.lost) {
          for (std::uint64_t i = 0; i < range.size_bytes; ++i) found[range.first_byte + i] = true;
        }
        ASSERT_EQ(found, expected);
        Bytes known = whole.shards()[member];
        for (std::size_t i = 0; i < known.size(); ++i) {
          if (found[i]) known[i] = std::byte{0};
        }
        ASSERT_TRUE(whole.play(plan, lengths[member]) == known);
      }
    }
  }
}

TEST(ParityRecovery, TenRoundsOfLossesRestoreAllBytes) {
  Random random(7);
  for (const auto& [members, parity, lengths] : shapes()) {
    const ParityGroup whole(lengths, parity, unit, members + parity);
    ParityGroup group = whole;
    for (int round = 0; round < 10; ++round) {
      std::uint32_t mask = 0;
      while (static_cast<std::uint32_t>(std::popcount(mask)) < parity) mask |= 1u << random_below(random, members);
      for (const auto member : members_of(mask)) group.erase(member);
      group.restore(members_of(mask));
      ASSERT_TRUE(group == whole) << "round " << round;
    }
  }
}

enum class What { data, parity, node };
enum class How { erase, corrupt };

// Of eight members with two parity pieces: `count` are struck, side by side or apart; corrupt bytes are one unit each,
// at the same place of the same stripe where that is meant.
struct Strike {
  How how;
  What what;
  bool adjacent;
  std::uint32_t count;
  bool restored;
};

TEST(ParityRecovery, FaultMatrixHasTheExpectedOutcomes) {
  constexpr std::uint32_t members = 8, parity = 2;
  const std::vector<std::uint64_t> lengths(members, unit * 6 * 4);
  const ParityGroup whole(lengths, parity, unit, 1);
  const ParityLayout& layout = whole.layout();
  std::vector<Strike> strikes;
  for (const How how : {How::erase, How::corrupt}) {
    for (const What what : {What::data, What::parity, What::node}) {
      for (const bool adjacent : {true, false}) {
        for (const std::uint32_t count : {1u, 2u, 3u}) {
          // Three parity losses alone lose no data: a stripe has two of them.
          strikes.push_back({how, what, adjacent, count, count <= parity || what == What::parity});
        }
      }
    }
  }
  for (const auto& [how, what, adjacent, count, restored] : strikes) {
    for (std::uint32_t first = 0; first < members; ++first) {
      ParityGroup group = whole;
      LostPieces lost;
      const ByteRange within = how == How::erase ? ByteRange{0, UINT64_MAX} : ByteRange{unit, unit};
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t member = (first + i * (adjacent ? 1 : 2)) % members;
        for (std::uint32_t stripe = 0; stripe < members; ++stripe) {
          const std::uint32_t position = position_of(layout, stripe, member);
          if (what == (layout.is_parity(position) ? What::data : What::parity)) continue;
          lost.add(stripe, member, within);
          Bytes& bytes =
              layout.is_parity(position) ? group.parity(stripe, position - layout.columns()) : group.shard(member);
          const std::uint64_t origin = layout.is_parity(position) ? 0 : layout.segment(member, position).first_byte;
          const std::uint64_t size = layout.stored_bytes(stripe, position);
          for (std::uint64_t at = 0; at < size; ++at) {
            if (at >= within.first_byte && at - within.first_byte < within.size_bytes)
              bytes[origin + at] ^= std::byte{1};
          }
        }
      }
      bool all_back = true;
      for (std::uint32_t member = 0; member < members; ++member) {
        const DecodePlan plan = plan_shard(layout, lost, member, {0, lengths[member]});
        all_back = all_back && plan.lost.empty();
        if (plan.lost.empty()) {
          ASSERT_TRUE(group.play(plan, lengths[member]) == whole.shards()[member]);
        }
      }
      ASSERT_EQ(all_back, restored) << static_cast<int>(how) << static_cast<int>(what) << adjacent << count;
    }
  }
}

TEST(ParityRecovery, DecodesDamageAtDifferentOffsetsOfAStripe) {
  const std::vector<std::uint64_t> lengths(4, unit * 3 * 4);
  ParityGroup group(lengths, 1, unit, 2);
  const ParityLayout& layout = group.layout();
  // Columns 0 of member 1 and 1 of member 2 lie in stripe 0.
  LostPieces lost;
  lost.add_shard_bytes(layout, 1, {layout.segment(1, 0).first_byte, unit});
  lost.add_shard_bytes(layout, 2, {layout.segment(2, 1).first_byte + unit, unit});
  for (const std::uint32_t member : {1u, 2u}) {
    const DecodePlan plan = plan_shard(layout, lost, member, {0, lengths[member]});
    EXPECT_TRUE(plan.lost.empty());
    EXPECT_TRUE(group.play(plan, lengths[member]) == group.shards()[member]);
    const auto decoded = std::count_if(plan.steps.begin(), plan.steps.end(), [](const auto& s) { return !is_read(s); });
    EXPECT_EQ(decoded, 1);
  }
  // At the same place they are beyond the tolerance: these bytes alone.
  lost.add_shard_bytes(layout, 2, {layout.segment(2, 1).first_byte, 5});
  EXPECT_EQ(plan_shard(layout, lost, 1, {0, lengths[1]}).lost, (std::vector<ByteRange>{{0, 5}}));
}

TEST(ParityRecovery, ReadsOnlyBytesThatDecodingNeeds) {
  const std::vector<std::uint64_t> lengths = {600, 600, 600, 600, 600, 100, 600, 600};
  const ParityGroup group(lengths, 2, unit, 3);
  const ParityLayout& layout = group.layout();
  LostPieces lost;
  lose_member(lost, layout, 0);
  for (std::uint64_t at = 0; at < 600; at += 7) {
    const ByteRange wanted{at, 1};
    const DecodePlan plan = plan_shard(layout, lost, 0, wanted);
    ASSERT_EQ(plan.steps.size(), 1U);
    EXPECT_EQ(plan.steps[0].bytes, wanted);
    EXPECT_EQ(plan.steps[0].sources.size(), 6U);
    std::uint32_t rows = 0;
    for (const DecodeSource& source : plan.steps[0].sources) {
      EXPECT_LE(source.bytes.size_bytes, 1U);
      EXPECT_NE(source.member, 0U);
      rows += layout.is_parity(source.position) ? 1 : 0;
    }
    EXPECT_EQ(rows, 1U);  // the one that is plain XOR
    EXPECT_EQ(plan.steps[0].sources.back().position, layout.columns());
  }
  const DecodePlan there = plan_shard(layout, lost, 3, {10, 500});
  std::uint64_t read = 0;
  for (const DecodeStep& step : there.steps) {
    EXPECT_TRUE(is_read(step));
    read += step.sources[0].bytes.size_bytes;
  }
  EXPECT_EQ(read, 500U);
}

TEST(ParityRecovery, TreatsBytesBehindALostShardsEndAsZeros) {
  const std::vector<std::uint64_t> lengths = {0, 400, 0, 400};
  const ParityGroup whole(lengths, 1, unit, 4);
  ParityGroup group = whole;
  for (const std::uint32_t member : {0u, 2u}) group.erase(member);
  LostPieces lost;
  for (const std::uint32_t member : {0u, 1u, 2u}) lose_member(lost, whole.layout(), member);
  // Members 0 and 2 have no bytes of their own, but parity of others: where that is lost, so are the others' bytes.
  const DecodePlan plan = plan_shard(whole.layout(), lost, 1, {0, 400});
  for (const ByteRange range : plan.lost) {
    const auto column = static_cast<std::uint32_t>(range.first_byte / whole.layout().segment_bytes());
    EXPECT_NE(whole.layout().stripe_of(1, column), 3U);
  }
  Bytes expected = whole.shards()[1];
  for (const ByteRange range : plan.lost) {
    std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(range.first_byte), range.size_bytes, std::byte{0});
  }
  EXPECT_TRUE(group.play(plan, 400) == expected);
}

TEST(ParityRecovery, UnreadDamageDoesNotSplitThePlan) {
  const std::vector<std::uint64_t> lengths = {64, 0, 0, 0};
  ParityGroup group(lengths, 2, unit, 6);
  const ParityLayout& layout = group.layout();
  const std::uint32_t stripe = layout.stripe_of(0, 0);
  LostPieces lost;
  lose_member(lost, layout, 0);
  lost.add(stripe, layout.member_at(stripe, layout.columns() + 1), {3, 5});  // row 1; row 0 suffices
  const DecodePlan plan = plan_shard(layout, lost, 0, {0, layout.segment_bytes()});
  ASSERT_EQ(plan.steps.size(), 1U);
  EXPECT_EQ(plan.steps[0].sources,
            (std::vector<DecodeSource>{{1, layout.member_at(stripe, 1), {}},
                                       {2, layout.member_at(stripe, 2), {0, layout.segment_bytes()}}}));
}

TEST(ParityRecovery, CutsWantedBytesBeyondTheEnd) {
  const ParityGroup group({100, 50, 0}, 1, unit, 5);
  EXPECT_TRUE(plan_shard(group.layout(), {}, 2, {0, 1000}).steps.empty());
  EXPECT_TRUE(plan_shard(group.layout(), {}, 1, {50, 10}).steps.empty());
  EXPECT_TRUE(group.play(plan_shard(group.layout(), {}, 1, {0, UINT64_MAX}), 50) == group.shards()[1]);
  EXPECT_TRUE(plan_parity(group.layout(), {}, 0, 0, {group.layout().parity_bytes(0), 1}).steps.empty());
}

}  // namespace
}  // namespace ckpt::placement
