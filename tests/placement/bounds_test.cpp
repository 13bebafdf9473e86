#include "placement/odds/bounds.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "placement/odds/survival.hpp"

namespace ckpt::placement::bounds {
namespace {

TEST(Bounds, Corollary1IsExactForFewLossesAndALowerBoundBeyond) {
  for (std::uint32_t copies = 1; copies <= 4; ++copies) {
    for (std::uint32_t nodes = copies; nodes <= 40; nodes += copies) {
      for (std::uint32_t lost = 0; lost <= nodes; ++lost) {
        const double exact = survival_odds(Pattern(Strategy::group, nodes, copies), lost).survival;
        const double bound = corollary_1(nodes, copies, lost);
        if (lost < 2 * copies) {
          EXPECT_NEAR(bound, exact, 1e-12) << nodes << " nodes, " << copies << " copies, " << lost << " lost";
        } else {
          EXPECT_LE(bound, exact + 1e-12);
        }
      }
    }
  }
}

TEST(Bounds, NeverExceedTheExactOdds) {
  for (const auto strategy : all_strategies) {
    for (std::uint32_t nodes = 2; nodes <= 30; ++nodes) {
      for (std::uint32_t copies = 2; copies <= std::min(nodes, 4u); ++copies) {
        const Pattern pattern(strategy, nodes, copies);
        for (std::uint32_t lost = 0; lost <= nodes; ++lost) {
          const double bound = paper_bound(pattern, lost);
          if (!std::isnan(bound)) {
            EXPECT_LE(bound, survival_odds(pattern, lost).survival + 1e-12);
          }
        }
      }
    }
  }
}

TEST(Bounds, AreUndefinedIfThePapersHaveNone) {
  EXPECT_TRUE(std::isnan(paper_bound(Pattern(Strategy::sharded_copy, 16, 4), 3)));
  EXPECT_TRUE(std::isnan(paper_bound(Pattern(Strategy::mixed, 17, 2), 3)));
  EXPECT_FALSE(std::isnan(paper_bound(Pattern(Strategy::mixed, 17, 2), 2)));
}

TEST(Bounds, LogChooseAgreesForSmallAndLargeNumbers) {
  EXPECT_NEAR(log_choose(10, 3), std::log(120.0), 1e-12);
  EXPECT_NEAR(log_choose(100'000, 1001) - log_choose(100'000, 1000), std::log(99'000.0 / 1001), 1e-8);
  EXPECT_EQ(log_choose(3, 4), -INFINITY);
}

// 3072 devices, each a node of its own in the equations, in groups of n = 6; rates are of one device and day; P_re = 1,
// since the snapshot process survives what kills the training process; P_tr from the software rate.
TEST(Reft, Figure8GivesSixteenDaysAgainstHalfADay) {
  const auto hardware = [](double days) { return weibull_survival(1e-4, days, 1.3); };
  const auto software = [](double days) { return weibull_survival(1e-5, days, 1.3); };
  const double with = days_above(0.9, [&](double days) { return reft_survival(3072, 6, hardware(days), 1); });
  const double without =
      days_above(0.9, [&](double days) { return unprotected_survival(3072, hardware(days), software(days)); });
  EXPECT_NEAR(with, 16.22, 0.1);
  EXPECT_NEAR(without, 0.41, 0.01);
  // The other reading, P_re from the software rate, is far from the paper's figure.
  const double other =
      days_above(0.9, [&](double days) { return reft_survival(3072, 6, hardware(days), software(days)); });
  EXPECT_LT(other, 3);
}

TEST(Reft, Equation5IsTheGeneratingFunctionOfGroupsThatTolerateOneLoss) {
  // Mixed over the number of lost nodes, the odds of 4 groups of 3 that survive one loss each are equation 5.
  const double alive = 0.93;
  const std::vector<Cell> groups{{Shape::code, 3, 2, 4}};
  double mixed = 0;
  for (std::uint32_t lost = 0; lost <= 12; ++lost) {
    const double weight = std::exp(log_choose(12, lost)) * std::pow(1 - alive, lost) * std::pow(alive, 12 - lost);
    mixed += weight * survival_odds(groups, lost).survival;
  }
  EXPECT_NEAR(mixed, reft_survival(12, 3, alive, 1), 1e-12);
}

template <typename Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Bounds, RefuseArgumentsOutsideTheirDomain) {
  EXPECT_EQ(refusal([] { corollary_1(5, 2, 2); }),
            "GEMINI's corollary 1 needs a number of nodes that is a multiple of the copies, not 5 nodes and 2 copies");
  EXPECT_EQ(refusal([] { union_bound(4, 2, 2, 5); }), "5 lost nodes are too many: there are only 4 nodes");
  EXPECT_EQ(
      refusal([] { reft_survival(10, 4, 0.9, 1); }),
      "REFT's equation 5 needs a number of nodes that is a multiple of the group size, not 10 nodes in groups of 4");
  EXPECT_NE(refusal([] { reft_survival(8, 4, 1.2, 1); }), "");
  EXPECT_NE(refusal([] { weibull_survival(-1, 1, 1); }), "");
}

}  // namespace
}  // namespace ckpt::placement::bounds
