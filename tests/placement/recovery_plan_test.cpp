#include "placement/odds/recovery_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "placement/odds/sampling.hpp"
#include "placement/odds/survival.hpp"
#include "tests/placement/support.hpp"

namespace ckpt::placement {
namespace {

TEST(LostNodes, AgreesWithTheHolderSets) {
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
    }
  }
}

TEST(LostNodes, RefusesToLoseUnknownNodes) {
  LostNodes lost(4);
  try {
    lost.add(4);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "node 4 cannot be lost: nodes are numbered from 0 to 3");
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

TEST(Sampling, IsRepeatableBySeed) {
  const Placement placement = place({.strategy = Strategy::group, .nodes = 30, .copies = 2});
  const auto once = sample_survival(placement, {.lost = 4}, 5'000, 9);
  EXPECT_EQ(once.survived, sample_survival(placement, {.lost = 4}, 5'000, 9).survived);
  EXPECT_NE(once.survived, sample_survival(placement, {.lost = 4}, 5'000, 10).survived);
}

TEST(Sampling, ShowsTheBenefitOfDomainsForCorrelatedLosses) {
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

TEST(Sampling, RefusesInvalidModels) {
  const Placement placement = place({.strategy = Strategy::group, .nodes = 4, .copies = 2});
  EXPECT_THROW(sample_survival(placement, {.lost = 5}, 1, 1), std::invalid_argument);
  EXPECT_THROW(sample_survival(placement, {.lost = 2, .correlation = 0.5}, 1, 1), std::invalid_argument);
  EXPECT_THROW(sample_survival(placement, {.lost = 2, .correlation = 1.5}, 1, 1), std::invalid_argument);
}

}  // namespace
}  // namespace ckpt::placement
