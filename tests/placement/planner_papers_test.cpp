#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "placement/odds/planner/papers.hpp"

namespace ckpt::planner {
namespace {

const Printed& number(const Review& review, const std::string& what) {
  const auto found = std::find_if(review.numbers.begin(), review.numbers.end(),
                                  [&](const Printed& each) { return each.what == what; });
  EXPECT_NE(found, review.numbers.end()) << what;
  return *found;
}

TEST(Papers, EveryNumberMatchesItsFormulaOrIsExplained) {
  for (const Review& review : {jit_table_8(), reft_figure_8(), gemini_figure_15()}) {
    EXPECT_TRUE(review.is_ok()) << review.key;
    for (const Printed& each : review.numbers)
      EXPECT_NE(each.agrees(), !each.explanation.empty())
          << each.what << ": an explanation if and only if it contradicts";
  }
}

TEST(Papers, UnexplainedContradictionFails) {
  Review review = jit_table_8();
  review.numbers.front().printed *= 2;
  EXPECT_FALSE(review.is_ok());
}

TEST(Papers, OurNumberMustMatchTheFormula) {
  Review review = jit_table_8();
  for (Printed& each : review.numbers)
    if (each.what == "GPT2-S, periodic, N = 1024") each.ours *= 1.1;
  EXPECT_FALSE(review.is_ok());
}

TEST(JitTable8, AllButOnePeriodicNumberMatchTheFormulas) {
  const Review review = jit_table_8();
  EXPECT_NEAR(number(review, "BERT-L-PT, c*, N = 1024").formula, 5.543, 0.001);
  EXPECT_NEAR(number(review, "BERT-L-PT, periodic, N = 8192").formula, 4.345, 0.001);
  int contradictions = 0;
  for (const Printed& each : review.numbers)
    contradictions += each.what.find("JIT") == std::string::npos && !each.agrees() ? 1 : 0;
  EXPECT_EQ(contradictions, 1);
  EXPECT_NE(number(review, "BERT-L-PT, periodic, N = 8192").explanation.find("w*"), std::string::npos);
}

TEST(JitTable8, UserLevelNumbersConfusePercentageAndFraction) {
  const Review review = jit_table_8();
  EXPECT_NEAR(number(review, "BERT-L-PT, user-level JIT, N = 1024").formula, 0.0316, 0.0001);
  EXPECT_NE(number(review, "BERT-L-PT, user-level JIT, N = 1024").explanation.find("fraction"), std::string::npos);
  EXPECT_TRUE(number(review, "GPT2-8B, user-level JIT, N = 8192").agrees());
}

TEST(ReftFigure8, FormulaGivesSixteenDaysAndWholeGroupsGiveTheSame) {
  const Printed with = number(reft_figure_8(), "with REFT (equation 5)");
  EXPECT_NEAR(with.formula, 16.18, 0.01);
  EXPECT_NEAR(with.ours, with.formula, 0.05);
}

TEST(GeminiFigure15, ThousandInstancesTrainNinetyOnePercentOfTheTime) {
  const Review review = gemini_figure_15();
  EXPECT_TRUE(number(review, "1000 instances, GEMINI").agrees());
  EXPECT_NEAR(number(review, "no failures, time spent on serialization, HighFreq").formula, 12.68, 0.01);
}

}  // namespace
}  // namespace ckpt::planner
