#include "schedule/deadline.hpp"

#include <gtest/gtest.h>

namespace ckpt::schedule {
namespace {

using Kind = Mark::Kind;

constexpr DeadlineOptions limits{2, 3, 4};  // a floor of 2 s, three times the slowest, after four iterations

// A rank whose iterations of 10 s compute for 4 s, communicate for 1 s, and compute for 5 s.
class WatchedRank {
 public:
  WatchedRank() { mark(Kind::iteration, 0); }

  void iterations(int count) {
    for (int i = 0; i < count; ++i) iteration(4, 1, 5);
  }
  void iteration(double before_s, double communicating_s, double after_s) {
    mark(Kind::begin, before_s);
    mark(Kind::end, communicating_s);
    mark(Kind::iteration, after_s);
  }
  void mark(Kind kind, double after_s) {
    now_s += after_s;
    deadline.observe({kind, now_s});
  }
  // Seconds from now.
  std::optional<double> due_in_s() const {
    const auto due_s = deadline.due_s();
    return due_s ? std::optional(*due_s - now_s) : std::nullopt;
  }

  LearnedDeadline deadline{limits};
  double now_s = 1000;
};

// Its first mark ends no iteration, and the iteration after it does not count.
constexpr int unknown = 4, known = 5;

TEST(LearnedDeadline, IsUnknownBeforeSomeIterations) {
  WatchedRank rank;
  rank.iterations(unknown);
  EXPECT_EQ(rank.due_in_s(), std::nullopt);
  rank.iterations(known - unknown);
  EXPECT_NE(rank.due_in_s(), std::nullopt);
}

TEST(LearnedDeadline, IsAMultipleOfTheSlowestComputationOrCommunication) {
  WatchedRank rank;
  rank.iterations(known);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 15);  // three times 5 s of computing
  rank.mark(Kind::begin, 4);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 3);  // three times 1 s of communication
  rank.mark(Kind::end, 0.1);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 15);
}

TEST(LearnedDeadline, IsNeverBelowTheFloor) {
  WatchedRank rank;
  for (int i = 0; i < known; ++i) rank.iteration(0.1, 0.1, 0.1);
  EXPECT_NEAR(*rank.due_in_s(), 2, 1e-9);
  rank.mark(Kind::begin, 0.1);
  EXPECT_NEAR(*rank.due_in_s(), 2, 1e-9);
}

TEST(LearnedDeadline, AppliesToIterationsWithManyMarks) {
  WatchedRank rank;
  rank.iterations(known);
  for (int i = 0; i < 6; ++i) {
    rank.mark(Kind::begin, 4);
    rank.mark(Kind::end, 0.5);
  }
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 3);  // it may compute for three times 9 s, and 24 have passed
}

TEST(LearnedDeadline, WaitingForOtherRanksDoesNotMakeAnIterationLate) {
  WatchedRank rank;
  rank.iterations(known);
  for (int i = 0; i < 100; ++i) {
    rank.mark(Kind::begin, 0);
    rank.mark(Kind::end, 2);
  }
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 15);
}

TEST(LearnedDeadline, ForgetsOldSlowIterations) {
  WatchedRank rank;
  rank.iterations(known);
  rank.iteration(4, 1, 10);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 30);
  rank.iterations(40);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 15);
}

TEST(LearnedDeadline, IgnoresASingleHangButLearnsLastingSlowness) {
  WatchedRank rank;
  rank.iterations(known);
  for (int i = 0; i < 3; ++i) {
    rank.iteration(4, 1, 100);
    EXPECT_DOUBLE_EQ(*rank.due_in_s(), 15) << i;
  }
  rank.iteration(4, 1, 100);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 300);
}

TEST(LearnedDeadline, PauseSuspendsTheDeadlineAndIsNotLearned) {
  WatchedRank rank;
  rank.iterations(known);
  rank.deadline.pause(rank.now_s + 1);
  EXPECT_EQ(rank.due_in_s(), std::nullopt);
  rank.deadline.resume(rank.now_s + 1000);
  EXPECT_EQ(rank.due_in_s(), std::nullopt);
  rank.mark(Kind::iteration, 2000);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 15);
  rank.iteration(4, 1, 12);  // the first iteration after it does not count either
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 15);
  rank.iteration(4, 1, 12);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 36);
}

TEST(LearnedDeadline, PositionIsUnknownAfterLostMarksUntilTheNextIteration) {
  WatchedRank rank;
  rank.iterations(known);
  rank.mark(Kind::begin, 4);
  EXPECT_EQ(rank.deadline.begun(), 1u);
  rank.deadline.lost_marks(rank.now_s + 1);
  EXPECT_EQ(rank.due_in_s(), std::nullopt);
  EXPECT_EQ(rank.deadline.begun(), std::nullopt);
  rank.mark(Kind::iteration, 5);
  EXPECT_EQ(rank.deadline.begun(), 0u);
  EXPECT_NE(rank.due_in_s(), std::nullopt);
}

TEST(LearnedDeadline, RestartsWhenTheObserverSlept) {
  WatchedRank rank;
  rank.iterations(known);
  rank.mark(Kind::begin, 4);
  rank.deadline.wait_again(rank.now_s + 100);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 103);
  EXPECT_EQ(rank.deadline.begun(), 1u);
}

TEST(LearnedDeadline, ForgivesComputationWhileTheObserverSlept) {
  WatchedRank rank;
  rank.iterations(known);
  rank.deadline.wait_again(rank.now_s + 100);
  rank.mark(Kind::begin, 110);
  rank.mark(Kind::end, 1);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 15);  // it has computed for 10 of 27 s
  rank.mark(Kind::begin, 9);
  rank.mark(Kind::end, 1);
  EXPECT_DOUBLE_EQ(*rank.due_in_s(), 8);
}

TEST(LearnedDeadline, KnowsTheNumberOfCommunicationsIfItIsConstant) {
  WatchedRank rank;
  EXPECT_EQ(rank.deadline.per_iteration(), std::nullopt);
  rank.iterations(known);
  EXPECT_EQ(rank.deadline.per_iteration(), 1u);
  rank.mark(Kind::begin, 1);
  rank.mark(Kind::end, 1);
  EXPECT_EQ(rank.deadline.per_iteration(), 1u) << "this iteration is not whole yet";
  rank.iteration(4, 1, 5);
  EXPECT_EQ(rank.deadline.per_iteration(), std::nullopt);
  rank.iterations(4);
  EXPECT_EQ(rank.deadline.per_iteration(), 1u);
}

TEST(LearnedDeadline, CountsTheRanksOwnComputation) {
  WatchedRank rank;
  EXPECT_EQ(rank.deadline.computing_s(), std::nullopt);
  rank.iterations(20);
  EXPECT_DOUBLE_EQ(*rank.deadline.computing_s(), 9);
  for (int i = 0; i < 8; ++i) rank.iteration(1, 2, 1);
  EXPECT_DOUBLE_EQ(*rank.deadline.computing_s(), 2);
}

TEST(LearnedDeadline, SingleLongIterationDoesNotMakeARankSlow) {
  WatchedRank rank;
  for (int i = 0; i < 3; ++i) rank.iteration(1, 2, 1);
  rank.iteration(1, 2, 100);  // before it has a deadline
  for (int i = 0; i < 5; ++i) rank.iteration(1, 2, 1);
  EXPECT_DOUBLE_EQ(*rank.deadline.computing_s(), 2);
}

}  // namespace
}  // namespace ckpt::schedule
