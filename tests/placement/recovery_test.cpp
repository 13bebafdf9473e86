#include "placement/recovery.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "placement/sampling.hpp"
#include "placement/survival.hpp"
#include "tests/placement/support.hpp"

namespace ckpt::placement {
namespace {

TEST(Recovery, SaysTheSameAsTheHolderSets) {
  for (const auto strategy : all_strategies) {
    const Placement placement = place({.strategy = strategy, .nodes = 11, .copies = 3});
    const auto sets = holder_masks(placement);
    LostNodes lost(11);
    for (std::uint32_t mask = 0; mask < (1u << 11); ++mask) {
      lost.clear();
      for (std::uint32_t node = 0; node < 11; ++node) {
        if (mask >> node & 1) lost.add(node);
      }
      const bool expected = !contains_a_set(mask, sets);
      EXPECT_EQ(survives(placement, lost), expected);
      EXPECT_EQ(plan_recovery(placement, lost).lost_shards.empty(), expected);
    }
  }
}

// Plays the plan: afterwards owners have their whole shard again, nodes store what they should, nothing came from a
// dead node or twice.
TEST(Recovery, PlanBringsEverythingBackFromLiveHolders) {
  Random random(5);
  for (int i = 0; i < 500; ++i) {
    const Placement placement = place({.strategy = all_strategies[random_below(random, std::size(all_strategies))],
                                       .nodes = 20 + random_below(random, 20),
                                       .copies = 2 + random_below(random, 3)});
    LostNodes lost(placement.nodes());
    for (std::uint32_t count = random_below(random, 5); count > 0; --count) {
      lost.add(random_below(random, placement.nodes()));
    }
    std::set<std::pair<std::uint32_t, std::uint32_t>> has;  // node, part
    for (std::uint32_t node = 0; node < placement.nodes(); ++node) {
      for (const auto part : placement.stored_by(node)) {
        if (!lost.contains(node)) has.emplace(node, part);
      }
    }
    const auto before = has;
    const RecoveryPlan plan = plan_recovery(placement, lost);
    for (const auto* transfers : {&plan.restore, &plan.protect}) {
      for (const auto& [part, from, to] : *transfers) {
        EXPECT_TRUE(before.contains({from, part}));
        EXPECT_TRUE(has.emplace(to, part).second);
      }
    }
    const std::set<std::uint32_t> gone(plan.lost_shards.begin(), plan.lost_shards.end());
    for (std::uint32_t node = 0; node < placement.nodes(); ++node) {
      for (const auto part : placement.stored_by(node)) {
        if (!gone.contains(placement.part(part).shard)) {
          EXPECT_TRUE(has.contains({node, part}));
        }
      }
      const std::uint32_t shard = placement.part(node).shard;
      for (const auto part : placement.owners(shard)) {
        if (!gone.contains(shard)) {
          EXPECT_TRUE(has.contains({node, part}));
        }
      }
    }
  }
}

TEST(Recovery, SharesTheSendingAmongHolders) {
  const Placement placement = place({.strategy = Strategy::group, .nodes = 8, .copies = 4});
  LostNodes lost(8);
  lost.add(1);
  lost.add(2);
  const RecoveryPlan plan = plan_recovery(placement, lost);
  EXPECT_EQ(plan.restore.size(), 2u);
  EXPECT_EQ(plan.protect.size(), 6u);
  std::map<std::uint32_t, int> sent;
  for (const auto& transfer : plan.restore) ++sent[transfer.from];
  for (const auto& transfer : plan.protect) ++sent[transfer.from];
  EXPECT_EQ(sent, (std::map<std::uint32_t, int>{{0, 4}, {3, 4}}));
}

TEST(Recovery, RefusesToLoseUnknownNodes) {
  LostNodes lost(4);
  try {
    lost.add(4);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "node 4 cannot be lost: there are only 0 to 3");
  }
}

TEST(Sampling, ContainsTheExactOddsInItsInterval) {
  int outside = 0;
  for (const auto strategy : all_strategies) {
    for (std::uint32_t lost = 2; lost <= 6; ++lost) {
      const Placement placement = place({.strategy = strategy, .nodes = 30, .copies = 2});
      const double exact = survival_odds(placement.pattern(), lost).survival;
      const Estimate estimate = sample_survival(placement, {.lost = lost}, 20'000, lost);
      outside += exact < estimate.low - 1e-12 || exact > estimate.high + 1e-12 ? 1 : 0;
      EXPECT_LT(estimate.high - estimate.low, 0.015);
      EXPECT_NEAR(estimate.share, exact, 0.02);
    }
  }
  EXPECT_LE(outside, 4);  // of 30, each with probability 0.05
}

TEST(Sampling, IsTheSameForTheSameSeed) {
  const Placement placement = place({.strategy = Strategy::group, .nodes = 30, .copies = 2});
  const auto once = sample_survival(placement, {.lost = 4}, 5'000, 9);
  EXPECT_EQ(once.survived, sample_survival(placement, {.lost = 4}, 5'000, 9).survived);
  EXPECT_NE(once.survived, sample_survival(placement, {.lost = 4}, 5'000, 10).survived);
}

TEST(Sampling, OfCorrelatedLossesShowsWhatDomainsAreWorth) {
  std::vector<std::uint32_t> rack_of(32);
  for (std::uint32_t node = 0; node < 32; ++node) rack_of[node] = node / 4;
  const Domains domains = Domains::flat(rack_of);
  const Placement unaware = place({.strategy = Strategy::group, .nodes = 32, .copies = 2});
  const Placement aware = place({.strategy = Strategy::group, .nodes = 32, .copies = 2, .domains = &domains});
  const LossModel burst{.lost = 3, .correlation = 0.9, .domains = &domains};
  EXPECT_LT(sample_survival(unaware, burst, 20'000, 1).high, 0.4);
  EXPECT_GT(sample_survival(aware, burst, 20'000, 1).low, 0.95);
}

TEST(Sampling, DrawsEveryNumberEquallyOften) {
  Random random(1);
  std::vector<int> drawn(7, 0);
  for (int i = 0; i < 70'000; ++i) ++drawn[random_below(random, 7)];
  for (const int count : drawn) EXPECT_NEAR(count, 10'000, 500);
}

TEST(Sampling, RefusesModelsThatMakeNoSense) {
  const Placement placement = place({.strategy = Strategy::group, .nodes = 4, .copies = 2});
  EXPECT_THROW(sample_survival(placement, {.lost = 5}, 1, 1), std::invalid_argument);
  EXPECT_THROW(sample_survival(placement, {.lost = 2, .correlation = 0.5}, 1, 1), std::invalid_argument);
  EXPECT_THROW(sample_survival(placement, {.lost = 2, .correlation = 1.5}, 1, 1), std::invalid_argument);
}

}  // namespace
}  // namespace ckpt::placement
