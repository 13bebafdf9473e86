#include "placement/odds/survival.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "placement/odds/bounds.hpp"
#include "tests/placement/support.hpp"

namespace ckpt::placement {
namespace {

Odds odds(Strategy strategy, std::uint32_t nodes, std::uint32_t copies, std::uint32_t lost) {
  return survival_odds(Pattern(strategy, nodes, copies), lost);
}

TEST(Survival, MatchesGeminiForSixteenNodesInPairs) {
  EXPECT_EQ(odds(Strategy::group, 16, 2, 2).count, (Odds::Count{112, 120}));
  EXPECT_NEAR(odds(Strategy::group, 16, 2, 2).survival, 0.9333, 0.00005);
  EXPECT_EQ(odds(Strategy::group, 16, 2, 3).count, (Odds::Count{448, 560}));
  EXPECT_DOUBLE_EQ(odds(Strategy::group, 16, 2, 3).survival, 0.8);
  EXPECT_DOUBLE_EQ(corollary_1(16, 2, 3), 0.8);
}

TEST(Survival, RingExceedsGeminisUnionBound) {
  const Pattern ring(Strategy::ring, 16, 2);
  EXPECT_NEAR(paper_bound(ring, 3), 0.60, 1e-12);
  EXPECT_NEAR(paper_bound(ring, 3), 0.80 * (1 - 0.25), 1e-12);  // "25.0 % lower than that of GEMINI"
  EXPECT_EQ(survival_odds(ring, 3).count, (Odds::Count{352, 560}));
  EXPECT_NEAR(survival_odds(ring, 3).survival, 0.62857, 0.000005);
}

TEST(Survival, MatchesEnumerationForAllSmallPlacements) {
  for (const auto strategy : all_strategies) {
    for (std::uint32_t nodes = 1; nodes <= 10; ++nodes) {
      for (std::uint32_t copies = 1; copies <= std::min(nodes, 4u); ++copies) {
        const Placement placement = place({.strategy = strategy, .nodes = nodes, .copies = copies});
        const auto sets = holder_masks(placement);
        for (std::uint32_t lost = 0; lost <= nodes; ++lost) {
          const Odds exact = survival_odds(placement.pattern(), lost);
          ASSERT_TRUE(exact.count);
          const auto all = static_cast<std::uint64_t>(std::llround(std::exp(log_choose(nodes, lost))));
          EXPECT_EQ(exact.count->total, all);
          EXPECT_EQ(exact.count->survivors, survivors_by_exhaustion(nodes, lost, sets))
              << name(strategy) << ", " << nodes << " nodes, " << copies << " copies, " << lost << " lost";
          EXPECT_DOUBLE_EQ(exact.survival, double(exact.count->survivors) / double(all));
        }
      }
    }
  }
}

TEST(Survival, MatchesEnumerationForErasureCodedGroups) {
  const std::vector<Cell> cells{{Shape::code, 5, 3, 2}, {Shape::code, 4, 2, 1}};  // any 2 of 5, twice; any 1 of 4
  for (std::uint32_t lost = 0; lost <= 14; ++lost) {
    std::uint64_t survivors = 0;
    each_subset(14, lost, [&](std::uint32_t mask) {
      const bool fine =
          std::popcount(mask & 0x1fu) <= 2 && std::popcount(mask & 0x3e0u) <= 2 && std::popcount(mask & 0x3c00u) <= 1;
      survivors += fine ? 1 : 0;
    });
    EXPECT_EQ(survival_odds(cells, lost).count->survivors, survivors) << lost << " lost";
  }
}

// Both ways for the same cells, everywhere both work; the relative error counts, on either side.
void expect_ways_agree(std::span<const Cell> cells, std::uint32_t lost) {
  const Odds counted = survival_by_counting(cells, lost);
  const Odds integrated = survival_by_integration(cells, lost);
  EXPECT_NEAR(integrated.survival, counted.survival, 1e-9 * counted.survival) << lost << " lost";
  EXPECT_NEAR(integrated.loss, counted.loss, 1e-9 * counted.loss) << lost << " lost";
}

TEST(Survival, IntegrationMatchesCounting) {
  for (const auto strategy : all_strategies) {
    for (const std::uint32_t nodes : {2u, 7u, 12u, 29u, 63u, 64u}) {
      for (const std::uint32_t copies : {1u, 2u, 3u, 5u, 7u, 12u, 25u, 62u}) {
        if (copies > nodes) continue;
        SCOPED_TRACE(std::string(name(strategy)) + ", " + std::to_string(nodes) + " nodes, " + std::to_string(copies) +
                     " copies");
        const Pattern pattern(strategy, nodes, copies);
        for (std::uint32_t lost = 0; lost <= nodes; ++lost) expect_ways_agree(pattern.cells(), lost);
      }
    }
  }
}

TEST(Survival, IntegrationMatchesCountingForOtherCells) {
  const std::vector<std::vector<Cell>> examples{
      {{Shape::code, 8, 3, 7}}, {{Shape::code, 20, 1, 3}}, {{Shape::ring, 11, 3, 4}, {Shape::pair, 9, 6, 2}}};
  for (const auto& cells : examples) {
    for (std::uint32_t lost = 0; lost <= 56; ++lost) expect_ways_agree(cells, lost);
  }
}

// At k = m only the number of distinct sets counts, so the loss is known in closed form, down to 1e-10 and less.
TEST(Survival, IsExactForAHundredThousandNodes) {
  constexpr std::uint32_t nodes = 100'000;
  for (const auto strategy : {Strategy::group, Strategy::ring, Strategy::mixed, Strategy::cover}) {
    for (const std::uint32_t copies : {2u, 3u, 4u}) {
      const Pattern pattern(strategy, nodes, copies);
      const double loss = pattern.distinct_holder_sets() * std::exp(-log_choose(nodes, copies));
      EXPECT_NEAR(survival_odds(pattern, copies).loss, loss, 1e-8 * loss) << name(strategy) << ", " << copies;
      EXPECT_EQ(survival_odds(pattern, copies - 1).loss, 0);
      EXPECT_EQ(survival_odds(pattern, nodes).survival, 0);
    }
  }
}

// Pairs: k nodes in k different groups, so C(N/2, k) 2^k of C(N, k) sets, a product of k plain factors.
TEST(Survival, MatchesTheProductFormulaForLargePairs) {
  for (const std::uint32_t lost : {2u, 10u, 316u, 1000u, 5000u}) {
    double log_survival = 0;
    for (std::uint32_t i = 0; i < lost; ++i) log_survival += std::log1p(-double(i) / (100'000 - double(i)));
    const double expected = std::exp(log_survival);
    EXPECT_NEAR(odds(Strategy::group, 100'000, 2, lost).survival, expected, 1e-9 * expected) << lost << " lost";
  }
}

// A ring of window 2: k lost nodes, no two adjacent, are N/(N-k) C(N-k, k) sets.
TEST(Survival, MatchesTheProductFormulaForALargeRing) {
  for (const std::uint32_t lost : {2u, 10u, 316u, 1000u, 3000u}) {
    double log_survival = std::log(100'000 / (100'000 - double(lost)));
    for (std::uint32_t i = 0; i < lost; ++i) log_survival += std::log1p(-double(lost) / (100'000 - double(i)));
    const double expected = std::exp(log_survival);
    EXPECT_NEAR(odds(Strategy::ring, 100'000, 2, lost).survival, expected, 1e-9 * expected) << lost << " lost";
  }
}

TEST(Survival, DecreasesWithLostNodesAndStaysAProbability) {
  for (const auto strategy : all_strategies) {
    const Pattern pattern(strategy, 1001, 3);
    double before = 1;
    for (std::uint32_t lost = 0; lost <= 1001; lost += lost < 60 ? 1 : 47) {
      const Odds now = survival_odds(pattern, lost);
      EXPECT_LE(now.survival, before) << name(strategy) << ", " << lost << " lost";
      EXPECT_GE(now.survival, 0);
      EXPECT_NEAR(now.survival + now.loss, 1, 1e-12);
      before = now.survival;
    }
  }
}

TEST(Survival, RefusesToLoseMoreNodesThanThereAre) {
  try {
    odds(Strategy::group, 16, 2, 17);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "17 lost nodes are too many: there are only 16 nodes");
  }
}

}  // namespace
}  // namespace ckpt::placement
