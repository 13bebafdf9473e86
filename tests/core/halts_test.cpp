#include "core/halts.hpp"

#include <gtest/gtest.h>

namespace ckpt::core::halts_test {
namespace {

constexpr std::uint64_t number = 7;

Halt new_halt() { return {1, number, {}, {}, 0, 0, {}, false}; }

HaltedRank rank_that(Rank rank, Freeze freeze, std::int64_t iteration, bool is_awaited = true) {
  return {rank, 10 + rank, {freeze == Freeze::none ? 0 : number, freeze, iteration}, is_awaited};
}

Halt next(const std::vector<HaltedRank>& ranks, Halt halt = new_halt()) {
  return advance(std::move(halt), ranks, false, false);
}

Suspicion suspicion_of(RankTrouble trouble) { return find_culprits({{10, {0, 1, trouble, 'R', 40, 6, 3000, 0}}}, 4); }

TEST(Halts, StuckRankJustifiesAHaltButASlowOneDoesNot) {
  EXPECT_TRUE(justifies_halt(suspicion_of(RankTrouble::dead)));
  EXPECT_TRUE(justifies_halt(suspicion_of(RankTrouble::stopped)));
  EXPECT_TRUE(justifies_halt(suspicion_of(RankTrouble::computing)));
  EXPECT_FALSE(justifies_halt({}));
  EXPECT_FALSE(justifies_halt(find_stragglers({{0, 0, 1000}, {1, 1, 100}, {2, 2, 100}}, 3, 3)));
  EXPECT_FALSE(justifies_halt(suspicion_of(RankTrouble::waiting))) << "the others may still come";
  Suspicion everybody = suspicion_of(RankTrouble::computing);
  everybody.is_everybody = true;
  EXPECT_FALSE(justifies_halt(everybody));
}

TEST(Halts, TheIterationIsDecidedOnceEveryAwaitedRankIsHeld) {
  const auto held = rank_that(0, Freeze::held, 40);
  EXPECT_FALSE(next({held, rank_that(1, Freeze::updating, 40)}).iteration);
  EXPECT_FALSE(next({held, rank_that(1, Freeze::none, -1)}).iteration);
  EXPECT_EQ(next({held, rank_that(1, Freeze::held, 40)}).iteration, 40);
  EXPECT_EQ(next({held, rank_that(1, Freeze::none, -1, false)}).iteration, 40) << "a rank that is gone";
}

TEST(Halts, RanksFreezeAtTheNewestIterationThatAnyHasReached) {
  EXPECT_EQ(next({rank_that(0, Freeze::held, 40), rank_that(1, Freeze::held, 41)}).iteration, 41);
  EXPECT_EQ(next({rank_that(0, Freeze::captured, 41), rank_that(1, Freeze::held, 40)}).iteration, 41);
  EXPECT_EQ(next({rank_that(0, Freeze::held, -1), rank_that(1, Freeze::held, -1)}).iteration, -1) << "a fresh start";
}

TEST(Halts, DecidedIterationNeverChanges) {
  const Halt decided = next({rank_that(0, Freeze::held, 40), rank_that(1, Freeze::held, 40)});
  EXPECT_EQ(next({rank_that(0, Freeze::captured, 40), rank_that(1, Freeze::held, 41)}, decided).iteration, 40);
}

TEST(Halts, StopsWaitingForARankWhoseUpdateDoesNotEnd) {
  const std::vector<HaltedRank> ranks = {rank_that(0, Freeze::held, 40), rank_that(1, Freeze::updating, 40)};
  EXPECT_EQ(advance(new_halt(), ranks, true, false).iteration, 40);
  EXPECT_FALSE(advance(new_halt(), {rank_that(1, Freeze::updating, 40)}, true, false).iteration) << "nobody is held";
}

TEST(Halts, IgnoresAnswersToAnotherHalt) {
  HaltedRank other_answer = rank_that(1, Freeze::captured, 90);
  other_answer.answer.halt = number - 1;
  const Halt halt = next({rank_that(0, Freeze::held, 40), other_answer});
  EXPECT_FALSE(halt.iteration);
  EXPECT_EQ(halt.captured, 0u);
  ASSERT_EQ(halt.others.size(), 2u);
  EXPECT_EQ(halt.others[1].freeze, Freeze::none);
}

TEST(Halts, EndsOnceEveryAwaitedRankIsCapturedOrCannotBe) {
  const auto captured = rank_that(0, Freeze::captured, 40);
  const Halt running = next({captured, rank_that(1, Freeze::capturing, 40)});
  EXPECT_FALSE(running.is_over);
  EXPECT_EQ(running.captured, 1u);
  EXPECT_TRUE(next({captured, rank_that(1, Freeze::refused, 40)}, running).is_over);
  EXPECT_TRUE(next({captured, rank_that(1, Freeze::none, -1, false)}, running).is_over);
  EXPECT_TRUE(advance(running, {captured, rank_that(1, Freeze::held, 40)}, true, true).is_over) << "its time is up";
}

// Nobody waits for a culprit until it answers.
TEST(Halts, WaitsForACulpritThatAnswersLate) {
  const Halt over = next({rank_that(0, Freeze::captured, 40), rank_that(1, Freeze::none, -1, false)});
  ASSERT_TRUE(over.is_over);
  EXPECT_FALSE(next({rank_that(0, Freeze::captured, 40), rank_that(1, Freeze::capturing, 40)}, over).is_over);
  EXPECT_TRUE(next({rank_that(0, Freeze::captured, 40), rank_that(1, Freeze::captured, 40)}, over).is_over);
}

TEST(Halts, DoesNotCountARankCapturedAtAnotherIteration) {
  Halt halt = next({rank_that(0, Freeze::held, 40), rank_that(1, Freeze::held, 40)});
  halt = next({rank_that(0, Freeze::captured, 40), rank_that(1, Freeze::captured, 41)}, halt);
  EXPECT_EQ(halt.captured, 1u);
  ASSERT_EQ(halt.others.size(), 1u);
  EXPECT_EQ(halt.others[0], (Unfrozen{1, 11, Freeze::captured, 41}));
}

TEST(Halts, MessageNamesTheCauseTheIterationAndMissingRanks) {
  const auto text_of = [](const Halt& halt) {
    return explain(halt, [](NodeId node) { return std::string(1, static_cast<char>('a' + node - 10)); });
  };
  EXPECT_EQ(text_of({}), "");
  Halt halt = new_halt();
  halt.culprits = suspicion_of(RankTrouble::dead).culprits;
  const std::string why =
      "because rank 0 on node a has made no progress in iteration 41 for 3.0 s: its process has ended";
  EXPECT_EQ(text_of(halt), "incarnation 1 is halted, " + why + "; captured: 0 of 0 ranks");
  halt = next(
      {rank_that(0, Freeze::none, -1, false), rank_that(1, Freeze::captured, 40), rank_that(2, Freeze::refused, 40)},
      advance(halt, {rank_that(1, Freeze::held, 40)}, false, false));
  EXPECT_EQ(text_of(halt), "incarnation 1 is halted at iteration 40, " + why +
                               "; captured: 1 of 3 ranks; rank 0 on node a does not answer; rank 2 on node c cannot be "
                               "captured (iteration 40)");
}

TEST(Halts, MessageNamesTheReporterIfThereIsNoCulprit) {
  const auto text_of = [](const Halt& halt) { return explain(halt, [](NodeId) { return std::string("a"); }); };
  Halt halt = new_halt();
  EXPECT_EQ(text_of(halt), "incarnation 1 is halted; captured: 0 of 0 ranks");
  halt.reporter = 3;
  EXPECT_EQ(text_of(halt),
            "incarnation 1 is halted, because a communication failed on rank 3 on node a; captured: 0 of 0 ranks");
}

TEST(Halts, MessageNamesAFewOfManyRanksAndCountsTheRest) {
  std::vector<HaltedRank> ranks;
  for (Rank rank = 0; rank < 100; ++rank) ranks.push_back(rank_that(rank, Freeze::none, -1));
  const Halt halt = next(ranks);
  EXPECT_EQ(halt.others.size(), unfrozen_max);
  EXPECT_TRUE(explain(halt, [](NodeId) { return "n"; }).ends_with("; and 97 more ranks"));
}

}  // namespace
}  // namespace ckpt::core::halts_test
