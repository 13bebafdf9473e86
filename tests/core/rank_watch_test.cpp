#include "core/rank_watch.hpp"

#include <gtest/gtest.h>

#include <string>

namespace ckpt::core::rank_watch {
namespace {

using Kind = schedule::Mark::Kind;

constexpr Rank rank = 3;
constexpr std::uint64_t incarnation = 2;

RankWatch::Limits limits() {
  RankWatch::Limits limits;
  limits.deadline = {1.0, 3, 4};
  limits.look_every_s = 0.1;
  return limits;
}

// Time passes as the test says. The rank's iterations take 100 ms, with a communication in their middle.
class RankWatchTest : public ::testing::Test {
 protected:
  RankWatchTest() {
    watch_.add(rank, 0);
    watch_.joined(rank, incarnation);
  }
  void iterations(int count) {
    for (int i = 0; i < count; ++i) {
      mark(Kind::begin, 0.04);
      mark(Kind::end, 0.02);
      ++rank_.iteration;
      mark(Kind::iteration, 0.04);
      look();
    }
  }
  void mark(Kind kind, double later_s) {
    now_s_ += later_s;
    rank_.marks.push_back({kind, now_s_});
  }
  void pass(double time_s) {
    for (const double end_s = now_s_ + time_s; now_s_ < end_s - 1e-6; now_s_ += 0.1) look();
  }
  void look() {
    if (is_alive_) watch_.see(rank, rank_, now_s_);
    rank_.marks.clear();
    rank_.lost_marks = false;
    auto news = watch_.look(now_s_);
    if (!news) return;
    ++news_;
    seen_ = std::move(*news);
  }
  void die() {
    watch_.died(rank, now_s_);
    is_alive_ = false;
  }
  // "" if the rank is in no trouble.
  std::string trouble() {
    look();
    return seen_.in_trouble.empty() ? "" : trouble_name(seen_.in_trouble.front().trouble);
  }
  const RankStanding& standing() const { return seen_.in_trouble.at(0); }

  RankWatch watch_{limits()};
  RankWatch::Reading rank_;
  bool is_alive_ = true;
  double now_s_ = 1000;
  RanksWatched seen_;
  int news_ = 0;
};

TEST_F(RankWatchTest, RankThatMakesItsMarksIsInNoTrouble) {
  iterations(50);
  EXPECT_EQ(trouble(), "");
  ASSERT_EQ(seen_.computing_ms.size(), 1u);
  EXPECT_NEAR(seen_.computing_ms[0].second, 80, 1);
}

TEST_F(RankWatchTest, SilenceBetweenCommunicationsCountsAsHangingInComputation) {
  iterations(10);
  pass(0.9);
  EXPECT_EQ(trouble(), "");
  pass(0.3);
  EXPECT_EQ(trouble(), "computing");
  EXPECT_EQ(standing().incarnation, incarnation);
  EXPECT_EQ(standing().iteration, 9);
  EXPECT_EQ(standing().begun, 0u);
  EXPECT_EQ(standing().per_iteration, 1u);
  EXPECT_NEAR(static_cast<double>(standing().still_ms), 1100, 150);
  iterations(1);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, SilenceInACommunicationCountsAsWaiting) {
  iterations(10);
  mark(Kind::begin, 0.04);
  pass(1.2);
  EXPECT_EQ(trouble(), "waiting");
  EXPECT_EQ(standing().begun, 1u);
}

TEST_F(RankWatchTest, RankIsInNoTroubleAfterALongWaitForOthers) {
  iterations(10);
  mark(Kind::begin, 0.04);
  pass(5);
  mark(Kind::end, 0);
  pass(0.8);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, SuspectsNothingBeforeAPatternIsKnown) {
  iterations(4);
  pass(60);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, RestoreForgetsTheLearnedPattern) {
  iterations(10);
  watch_.joined(rank, 0);
  pass(60);
  watch_.joined(rank, incarnation + 1);
  iterations(2);
  pass(60);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, RestoringRankIsInNoTrouble) {
  iterations(10);
  watch_.joined(rank, 0);
  rank_.process = 'T';
  pass(60);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, APauseSuspendsSuspicion) {
  iterations(10);
  rank_.is_paused = true;
  pass(60);
  EXPECT_EQ(trouble(), "");
  rank_.is_paused = false;
  iterations(2);
  pass(1.2);
  EXPECT_EQ(trouble(), "computing");
}

TEST_F(RankWatchTest, GrowingSlotsSuspendSuspicionUntilTheNextIteration) {
  iterations(10);
  watch_.interrupted(rank, now_s_);
  pass(60);
  EXPECT_EQ(trouble(), "");
  iterations(1);
  pass(1.2);
  EXPECT_EQ(trouble(), "computing");
}

TEST_F(RankWatchTest, GrowingSlotsDoNotEndAPause) {
  iterations(10);
  rank_.is_paused = true;
  look();
  watch_.interrupted(rank, now_s_);
  mark(Kind::iteration, 0.1);
  pass(60);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, LostMarksSuspendSuspicionUntilTheNextIteration) {
  iterations(10);
  rank_.lost_marks = true;
  pass(60);
  EXPECT_EQ(trouble(), "");
  iterations(1);
  pass(1.2);
  EXPECT_EQ(trouble(), "computing");
}

TEST_F(RankWatchTest, IgnoresAnIterationInWhichMarksWereLost) {
  iterations(10);
  mark(Kind::iteration, 0.1);
  rank_.lost_marks = true;
  pass(60);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, PausedAgentGivesEveryRankItsFullTimeAgain) {
  iterations(10);
  now_s_ += 5;
  EXPECT_EQ(trouble(), "");
  pass(0.9);
  EXPECT_EQ(trouble(), "");
  pass(0.3);
  EXPECT_EQ(trouble(), "computing");
}

TEST_F(RankWatchTest, NamesAStoppedProcessAfterAWhile) {
  for (const char state : {'T', 't'}) {
    iterations(10);
    rank_.process = state;
    pass(0.4);
    EXPECT_EQ(trouble(), "");
    pass(0.3);
    EXPECT_EQ(trouble(), "stopped");
    EXPECT_EQ(standing().process, state);
    rank_.process = 'S';
    iterations(1);
    EXPECT_EQ(trouble(), "");
  }
}

TEST_F(RankWatchTest, ShortStopsDoNotAddUp) {
  iterations(10);
  for (int i = 0; i < 5; ++i) {
    rank_.process = 'T';
    pass(0.3);
    rank_.process = 'S';
    iterations(1);
    EXPECT_EQ(trouble(), "");
  }
}

TEST_F(RankWatchTest, StopDuringTheAgentsPauseCountsFromThePausesEnd) {
  iterations(10);
  rank_.process = 'T';
  look();
  now_s_ += 5;
  pass(0.4);
  EXPECT_EQ(trouble(), "");
  pass(0.3);
  EXPECT_EQ(trouble(), "stopped");
}

TEST_F(RankWatchTest, NamesADeadRankUntilItHasANewTrainer) {
  iterations(10);
  die();
  pass(10);
  EXPECT_EQ(trouble(), "dead");
  EXPECT_EQ(standing().process, 0);
  watch_.add(rank, 0);
  is_alive_ = true;
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, StopsWatchingAClosedEngine) {
  iterations(10);
  watch_.remove(rank);
  pass(10);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, TimesAloneDoNotChangeTheFinding) {
  iterations(10);
  die();
  news_ = 0;
  pass(10);
  EXPECT_EQ(news_, 1);
}

}  // namespace
}  // namespace ckpt::core::rank_watch
