#include "schedule/idle_forecast.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>

namespace ckpt::schedule {
namespace {

using ::testing::HasSubstr;
using Kind = Mark::Kind;

constexpr bool idle = false, busy = true;

IdleForecastOptions options(std::uint32_t iterations = 2) {
  IdleForecastOptions options;
  options.profiler.iterations = iterations;
  options.usable = 0.5;
  options.silence_s = 10;
  options.first_silence_s = 200;
  return options;
}

// A trainer whose iterations of 1 s communicate from 0.2 to 0.4 and from 0.6 to 0.9.
class Trainer {
 public:
  explicit Trainer(RankIdleForecast& idle_forecast) : idle_forecast_(idle_forecast) {}
  void iterations(int count) {
    for (int i = 0; i < count; ++i) {
      communicates(0.2, 0.4);
      communicates(0.6, 0.9);
      ends(1);
    }
  }
  void communicates(double begin_s, double end_s) {
    idle_forecast_.observe({Kind::begin, at(begin_s)});
    idle_forecast_.observe({Kind::end, at(end_s)});
  }
  void ends(double length_s) {
    began_s_ += length_s;
    idle_forecast_.observe({Kind::iteration, began_s_});
  }
  double at(double s) const { return began_s_ + s; }  // within this iteration

 private:
  RankIdleForecast& idle_forecast_;
  double began_s_ = 1000;
};

TEST(IdleForecast, IsFreeWithoutHooks) {
  RankIdleForecast idle_forecast(options());
  EXPECT_EQ(idle_forecast.idle_forecast(5, idle).state, NetworkState::free);
  for (int i = 0; i < 50; ++i) idle_forecast.observe({Kind::iteration, 1.0 * i});
  EXPECT_EQ(idle_forecast.idle_forecast(49.5, idle).state, NetworkState::free) << "iterations without communication";
}

TEST(IdleForecast, ReliesOnTheGateWhileLearning) {
  RankIdleForecast idle_forecast(options(2));
  Trainer trainer(idle_forecast);
  trainer.iterations(2);
  EXPECT_EQ(idle_forecast.learned(), 1u);
  EXPECT_EQ(idle_forecast.idle_forecast(trainer.at(0.1), busy).state, NetworkState::busy);
  const IdleForecast seen = idle_forecast.idle_forecast(trainer.at(0.1), idle);
  EXPECT_EQ(seen.state, NetworkState::idle);
  EXPECT_TRUE(std::isinf(seen.idle_s));
  trainer.iterations(1);
  EXPECT_FALSE(idle_forecast.learned());
  EXPECT_FALSE(std::isinf(idle_forecast.idle_forecast(trainer.at(0.1), idle).idle_s));
}

TEST(IdleForecast, LongestSpanMayCrossTheIterationsEnd) {
  RankIdleForecast idle_forecast(options(2));
  EXPECT_TRUE(std::isinf(idle_forecast.longest_idle_s()));
  Trainer(idle_forecast).iterations(5);
  ASSERT_FALSE(idle_forecast.learned());
  EXPECT_NEAR(idle_forecast.longest_idle_s(), 0.5 * (0.1 + 0.2), 1e-9)
      << "0.2 between the two, 0.1 and 0.2 around the end";
}

TEST(IdleForecast, IsTheUsableRestOfTheSpan) {
  RankIdleForecast idle_forecast(options());
  Trainer trainer(idle_forecast);
  trainer.iterations(3);
  EXPECT_NEAR(idle_forecast.idle_forecast(trainer.at(0.05), idle).idle_s, 0.5 * 0.2 - 0.05, 1e-6);
  EXPECT_NEAR(idle_forecast.idle_forecast(trainer.at(0.15), idle).idle_s, 0, 1e-9);
  trainer.communicates(0.2, 0.45);
  EXPECT_NEAR(idle_forecast.idle_forecast(trainer.at(0.45), idle).idle_s, 0.5 * 0.2, 1e-6);
  EXPECT_NEAR(idle_forecast.idle_forecast(trainer.at(0.5), idle).idle_s, 0.5 * 0.2 - 0.05, 1e-6);
  EXPECT_EQ(idle_forecast.idle_forecast(trainer.at(0.5), busy).state, NetworkState::busy)
      << "whatever the profile says";
}

TEST(IdleForecast, ContinuesIntoTheNextIterationAfterTheLastCommunication) {
  RankIdleForecast idle_forecast(options());
  Trainer trainer(idle_forecast);
  trainer.iterations(3);
  trainer.communicates(0.2, 0.4);
  trainer.communicates(0.6, 0.9);
  EXPECT_NEAR(idle_forecast.idle_forecast(trainer.at(0.9), idle).idle_s, 0.5 * (0.1 + 0.2), 1e-6);
}

TEST(IdleForecast, ReliesOnTheGateIfThePatternIsNotTheLearnedOne) {
  RankIdleForecast idle_forecast(options());
  Trainer trainer(idle_forecast);
  trainer.iterations(3);
  for (int i = 0; i < 3; ++i) trainer.communicates(0.1 + 0.2 * i, 0.2 + 0.2 * i);
  const IdleForecast seen = idle_forecast.idle_forecast(trainer.at(0.7), idle);
  EXPECT_EQ(seen.state, NetworkState::idle);
  EXPECT_TRUE(std::isinf(seen.idle_s));
}

TEST(IdleForecast, IsFreeIfTheTrainerFallsSilentEvenInACommunication) {
  RankIdleForecast idle_forecast(options());
  Trainer trainer(idle_forecast);
  trainer.iterations(3);
  idle_forecast.observe({Kind::begin, trainer.at(0.2)});
  EXPECT_EQ(idle_forecast.idle_forecast(trainer.at(10), busy).state, NetworkState::busy);
  EXPECT_EQ(idle_forecast.idle_forecast(trainer.at(10.3), busy).state, NetworkState::free);
}

TEST(IdleForecast, LongIterationsDoNotCountAsSilence) {
  RankIdleForecast idle_forecast(options());
  idle_forecast.observe({Kind::iteration, 0});
  idle_forecast.observe({Kind::begin, 10});
  idle_forecast.observe({Kind::end, 20});
  idle_forecast.observe({Kind::iteration, 100});
  EXPECT_EQ(idle_forecast.idle_forecast(100 + 290, idle).state, NetworkState::idle);
  EXPECT_EQ(idle_forecast.idle_forecast(100 + 310, idle).state, NetworkState::free);
}

TEST(IdleForecast, HasNoLimitInASpanMuchLongerThanLearned) {
  RankIdleForecast idle_forecast(options());
  Trainer trainer(idle_forecast);
  trainer.iterations(3);
  trainer.communicates(0.2, 0.4);
  EXPECT_NEAR(idle_forecast.idle_forecast(trainer.at(0.79), idle).idle_s, 0, 1e-9);
  EXPECT_TRUE(std::isinf(idle_forecast.idle_forecast(trainer.at(0.81), idle).idle_s)) << "an evaluation, say";
  EXPECT_EQ(idle_forecast.idle_forecast(trainer.at(0.81), busy).state, NetworkState::busy);
}

TEST(IdleForecast, CountsACommunicationAcrossAnIterationsEndToBoth) {
  RankIdleForecast idle_forecast(options());
  Trainer trainer(idle_forecast);
  for (int i = 0; i < 4; ++i) {  // begins at 0.9, ends at 0.1 of the next one
    if (i != 0) idle_forecast.observe({Kind::end, trainer.at(0.1)});
    trainer.communicates(0.4, 0.5);
    idle_forecast.observe({Kind::begin, trainer.at(0.9)});
    trainer.ends(1);
  }
  ASSERT_FALSE(idle_forecast.learned());
  EXPECT_EQ(idle_forecast.profile().spans.size(), 4u);
  idle_forecast.observe({Kind::end, trainer.at(0.1)});
  EXPECT_NEAR(idle_forecast.idle_forecast(trainer.at(0.1), idle).idle_s, 0.5 * 0.3, 1e-6);
  trainer.communicates(0.4, 0.5);
  EXPECT_NEAR(idle_forecast.idle_forecast(trainer.at(0.5), idle).idle_s, 0.5 * 0.4, 1e-6);
}

TEST(IdleForecast, LearnsNothingFromEndlessIterations) {
  RankIdleForecast idle_forecast(options(1));
  Trainer trainer(idle_forecast);
  trainer.iterations(1);
  for (int i = 0; i < 20'000; ++i) trainer.communicates(1e-5 * i, 1e-5 * i + 1e-6);
  EXPECT_TRUE(std::isinf(idle_forecast.idle_forecast(trainer.at(0.3), idle).idle_s));
  trainer.ends(1);
  EXPECT_EQ(idle_forecast.learned(), 0u);
}

TEST(IdleForecast, StartsFromAKnownProfile) {
  RankIdleForecast first(options());
  Trainer(first).iterations(3);
  RankIdleForecast second(options(), first.profile());
  Trainer trainer(second);
  trainer.iterations(1);  // of which the beginning is not known
  trainer.communicates(0.2, 0.4);
  EXPECT_NEAR(second.idle_forecast(trainer.at(0.4), idle).idle_s, 0.5 * 0.2, 1e-6);
  EXPECT_FALSE(second.learned());
}

TEST(IdleForecast, DoesNotLearnFromAnIterationWithLostMarks) {
  RankIdleForecast idle_forecast(options(1));
  Trainer trainer(idle_forecast);
  trainer.iterations(1);
  trainer.communicates(0.2, 0.4);
  idle_forecast.lost_marks(trainer.at(0.5));
  trainer.ends(1);
  EXPECT_EQ(idle_forecast.learned(), 0u);
  trainer.iterations(1);
  ASSERT_FALSE(idle_forecast.learned());
  idle_forecast.lost_marks(trainer.at(0));
  EXPECT_TRUE(std::isinf(idle_forecast.idle_forecast(trainer.at(0.05), idle).idle_s)) << "where it stands is not known";
  trainer.iterations(1);
  EXPECT_FALSE(std::isinf(idle_forecast.idle_forecast(trainer.at(0.05), idle).idle_s));
}

TEST(IdleForecast, WorseOfReturnsTheWorstForecast) {
  const IdleForecast free{NetworkState::free, INFINITY}, shorter{NetworkState::idle, 1}, longer{NetworkState::idle, 2},
      in_use{NetworkState::busy, 0};
  const IdleForecast* order[] = {&free, &longer, &shorter, &in_use};
  for (const IdleForecast* a : order)
    for (const IdleForecast* b : order) {
      const IdleForecast worst = worse_of(*a, *b);
      const IdleForecast& expected =
          std::find(std::begin(order), std::end(order), a) < std::find(std::begin(order), std::end(order), b) ? *b : *a;
      EXPECT_EQ(worst.state, expected.state);
      EXPECT_EQ(worst.idle_s, expected.idle_s);
    }
}

TEST(IdleForecast, ReportsUnbalancedHooksAndContinues) {
  RankIdleForecast idle_forecast(options(1));
  Trainer trainer(idle_forecast);
  trainer.iterations(1);
  idle_forecast.observe({Kind::begin, trainer.at(0.5)});
  trainer.ends(1);
  EXPECT_THAT(idle_forecast.complaint(), HasSubstr("had not ended"));
  trainer.iterations(1);
  EXPECT_THAT(idle_forecast.complaint(), HasSubstr("had not ended")) << "nor has it since";
  idle_forecast.observe({Kind::end, trainer.at(0.1)});
  trainer.ends(1);
  EXPECT_EQ(idle_forecast.complaint(), "");
}

TEST(IdleForecast, TreatsBackwardTimesAsEqual) {
  RankIdleForecast idle_forecast(options(1));
  idle_forecast.observe({Kind::iteration, 10});
  idle_forecast.observe({Kind::begin, 12});
  idle_forecast.observe({Kind::end, 11});
  idle_forecast.observe({Kind::iteration, 15});
  ASSERT_FALSE(idle_forecast.learned());
  EXPECT_DOUBLE_EQ(idle_forecast.profile().iteration_s, 5);
  EXPECT_DOUBLE_EQ(idle_forecast.profile().idle_s(), 5);
}

TEST(IdleForecast, RefusesInvalidOptions) { EXPECT_THROW(RankIdleForecast(options(0)), std::invalid_argument); }

}  // namespace
}  // namespace ckpt::schedule
