// A suspicion halts the job: the leader's halt reaches every trainer, and their answers come back.
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core::halted_job {
namespace {

constexpr std::uint32_t ranks = 4;

// Four ranks on as many nodes, with one main shard of which two ranks capture each part.
struct Job : Cluster {
  explicit Job(bool does_halt = true) : Cluster(0, ranks) {
    configure = [does_halt](Config& config) { config.halts = does_halt; };
    main_of = [](Rank) { return std::string("model"); };
    for (NodeId node = 0; node < ranks; ++node) boot(node);
    start_incarnation(own_node);
    begin_training();
    snapshot_all(40);
    advance(3000);
    EXPECT_EQ(status(0).committed, CheckpointId(1, 40));
  }
  void suspect(Rank rank, RankTrouble trouble = RankTrouble::dead) {
    feed(own_node(rank), RanksWatched{{{rank, incarnation(), trouble, 'S', 40, 6u, 3000, 0}}, {}});
    advance(1000);
  }
  // The rank has kept its small state at this iteration, and may still be captured there.
  void rest(Rank rank, std::int64_t iteration) { feed(own_node(rank), Progress{rank, iteration, iteration}); }
  void answer(Rank rank, Freeze freeze, std::int64_t iteration) {
    feed(own_node(rank), FreezeAnswered{rank, {halts.at(rank).back().halt, freeze, iteration}});
    advance(100);
  }
  // What a trainer's death leaves in its granted slots.
  void die(Rank rank, std::int64_t iteration) {
    const SlotRef slot = granted().at(rank).back();
    feed(own_node(rank), LeftBehind{rank, {{slot, piece_of(slot.shard, {incarnation(), iteration}, ranks)}}});
    exit_trainer(rank);
  }
  Halt halt(NodeId node = 0) const { return status(node).halt; }
};

TEST(HaltedJob, SuspicionHaltsEveryRankOnce) {
  Job job;
  job.suspect(2, RankTrouble::stopped);
  for (Rank rank = 0; rank < ranks; ++rank) {
    ASSERT_EQ(job.halts[rank].size(), 1u) << rank;
    EXPECT_NE(job.halts[rank].front().halt, 0u);
    EXPECT_FALSE(job.halts[rank].front().iteration);
    EXPECT_EQ(job.halt(rank).incarnation, 1u);
    ASSERT_EQ(job.halt(rank).culprits.size(), 1u);
    EXPECT_EQ(job.halt(rank).culprits[0].standing.rank, 2u);
  }
}

TEST(HaltedJob, SuspicionHaltsNoRankWithoutTheOption) {
  Job job(false);
  job.suspect(2);
  EXPECT_TRUE(job.halts.empty());
  EXPECT_EQ(job.halt(), Halt());
}

TEST(HaltedJob, EveryRankLearnsTheDecidedIteration) {
  Job job;
  job.suspect(2, RankTrouble::stopped);
  for (const Rank rank : {0u, 1u}) job.answer(rank, Freeze::held, 43);
  EXPECT_FALSE(job.halt().iteration);
  job.answer(3, Freeze::held, 44);
  EXPECT_EQ(job.halt().iteration, 44) << "nobody waits for the culprit";
  for (Rank rank = 0; rank < ranks; ++rank) EXPECT_EQ(job.halts[rank].back().iteration, 44) << rank;
}

// Its update may communicate with ranks that are gone.
TEST(HaltedJob, WaitsForACulpritAtRestButNotInAnUpdate) {
  Job job;
  job.suspect(2, RankTrouble::stopped);
  for (const Rank rank : {0u, 1u, 3u}) job.answer(rank, Freeze::held, 43);
  for (const Rank rank : {0u, 1u, 3u}) job.answer(rank, Freeze::captured, 43);
  ASSERT_TRUE(job.halt().is_over);
  job.answer(2, Freeze::updating, 43);
  EXPECT_TRUE(job.halt().is_over);
  job.answer(2, Freeze::held, 43);
  EXPECT_FALSE(job.halt().is_over);
  job.answer(2, Freeze::captured, 43);
  EXPECT_TRUE(job.halt().is_over);
}

TEST(HaltedJob, WaitsForASilentRankOnlyUntilTheDeadline) {
  Job job;
  job.suspect(2, RankTrouble::stopped);
  job.answer(0, Freeze::held, 43);
  job.answer(1, Freeze::updating, 43);
  job.advance(6000);
  EXPECT_EQ(job.halt().iteration, 43);
  job.answer(0, Freeze::captured, 43);
  EXPECT_FALSE(job.halt().is_over);
  job.advance(60'000);
  EXPECT_TRUE(job.halt().is_over);
  EXPECT_EQ(job.halt().captured, 1u);
  EXPECT_EQ(job.halt().others.size(), 3u);
}

TEST(HaltedJob, DoesNotWaitForARankOfASilentNode) {
  Job job;
  const NodeId lost = *job.current_leader() == 3 ? 1 : 3;
  job.suspect(2, RankTrouble::stopped);
  job.lose(lost);
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (rank != 2 && own_node(rank) != lost) job.answer(rank, Freeze::captured, 43);
  }
  EXPECT_FALSE(job.halt(0).iteration) << "it may still answer";
  job.advance(2500);
  EXPECT_EQ(job.halt(0).iteration, 43) << "without the deadline for ranks in an update";
  EXPECT_TRUE(job.halt(0).is_over);
}

// A rank that had updated dies before its agent finds what it left.
TEST(HaltedJob, TheIterationAtWhichRanksFreezeIsNotAbandoned) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank) job.rest(rank, 43);
  job.feed(own_node(2), Progress{2, 43, -1});
  job.suspect(2, RankTrouble::stopped);
  for (const Rank rank : {0u, 1u, 3u}) job.answer(rank, Freeze::held, 43);
  for (const Rank rank : {0u, 1u, 3u}) {
    ASSERT_TRUE(job.snapshot(rank, 43));
    job.answer(rank, Freeze::captured, 43);
  }
  job.advance(1000);
  for (const Rank rank : {0u, 1u, 3u})
    EXPECT_NE(job.find_slot(own_node(rank), piece_of(private_shard(rank), {1, 43}, ranks)), nullptr) << rank;
}

// They wait for those that the halt holds.
TEST(HaltedJob, DoesNotBlameHeldUpRanks) {
  Job job;
  job.suspect(2, RankTrouble::computing);
  ASSERT_EQ(job.status(0).suspicion.culprits.at(0).standing.rank, 2u);
  for (Rank rank = 0; rank < ranks; ++rank)
    job.feed(own_node(rank),
             RanksWatched{{{rank, 1, RankTrouble::waiting, 'S', 40, rank == 1 ? 5u : 6u, 3000, 0, 8}}, {}});
  job.advance(1000);
  for (NodeId node = 0; node < ranks; ++node) EXPECT_TRUE(job.status(node).suspicion.culprits.empty()) << node;
}

TEST(HaltedJob, RanksInAHungCommunicationStayNamedAfterTheHalt) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank)
    job.feed(own_node(rank),
             RanksWatched{{{rank, 1, RankTrouble::waiting, 'S', 40, rank < 2 ? 5u : 6u, 3000, 0, 8}}, {}});
  job.advance(3000);
  ASSERT_NE(job.halt().incarnation, 0u);
  EXPECT_EQ(job.status(0).suspicion.culprits.size(), 2u);
}

TEST(HaltedJob, HaltEndsWithItsIncarnation) {
  Job job;
  job.suspect(2);
  ASSERT_EQ(job.halt().incarnation, 1u);
  job.halts.clear();
  job.start_incarnation(own_node);
  job.begin_training();
  job.advance(2000);
  EXPECT_EQ(job.halt(), Halt());
  EXPECT_TRUE(job.halts.empty()) << "the trainers of the next incarnation are told of none";
}

TEST(HaltedJob, TrainerThatHasNotRestoredIsNotHalted) {
  Job job;
  job.suspect(2);
  job.halts.clear();
  job.hello(own_node(2), 2);
  job.advance(500);
  EXPECT_FALSE(job.halts.contains(2));
}

TEST(HaltedJob, IgnoresAHaltOfAnotherIncarnation) {
  Job job;
  const NodeId node = *job.current_leader() == 1 ? 2 : 1;
  Directive newest;
  job.on_directive = [&](const Directive& directive) { newest = directive; };
  job.advance(500);
  for (const std::uint64_t incarnation : {0u, 2u, 1u}) {
    newest.sequence += 1000;
    newest.halt = {incarnation, newest.epoch, 43, {}, ranks, 0, {}, false};
    job.feed(node, MessageArrived{newest.leader, newest});
    job.snapshot(node, 41);  // handles what the event has caused
    EXPECT_EQ(job.halts.contains(node), incarnation == 1) << incarnation;
  }
}

TEST(HaltedJob, IgnoresAHaltOfAFormerLeader) {
  Job job;
  Directive former;
  job.on_directive = [&](const Directive& directive) { former = directive; };
  job.advance(500);
  job.on_directive = [](const Directive&) {};
  job.change_leader();
  job.advance(1000);
  former.sequence += 1000;
  former.halt = {1, former.epoch, 43, {}, ranks, 0, {}, false};
  for (NodeId node = 0; node < ranks; ++node) job.feed(node, MessageArrived{former.leader, former});
  job.advance(500);
  EXPECT_TRUE(job.halts.empty());
}

TEST(HaltedJob, NewLeaderContinuesTheHaltThatRanksObey) {
  Job job;
  const NodeId leader = *job.current_leader();
  job.suspect(2, RankTrouble::stopped);
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (rank != 2) job.answer(rank, Freeze::held, 43);
  }
  const std::uint64_t number = job.halt().number;
  for (NodeId node = 0; node < ranks; ++node) job.feed(node, RanksWatched{});
  job.change_leader();
  job.advance(3000);
  ASSERT_NE(*job.current_leader(), leader);
  for (NodeId node = 0; node < ranks; ++node) {
    EXPECT_EQ(job.halt(node).number, number) << node;
    EXPECT_EQ(job.halt(node).iteration, 43) << node;
  }
}

// Rank 3 was in an update for too long, so it freezes at a newer iteration than the others.
TEST(HaltedJob, NewLeaderKeepsTheDecidedIteration) {
  Job job;
  job.suspect(2, RankTrouble::stopped);
  for (const Rank rank : {0u, 1u}) job.answer(rank, Freeze::held, 43);
  job.answer(3, Freeze::updating, 43);
  job.advance(6000);
  ASSERT_EQ(job.halt().iteration, 43);
  job.answer(3, Freeze::captured, 44);
  for (NodeId node = 0; node < ranks; ++node) job.feed(node, RanksWatched{});
  job.change_leader();
  job.advance(8000);
  for (NodeId node = 0; node < ranks; ++node) EXPECT_EQ(job.halt(node).iteration, 43) << node;
}

TEST(HaltedJob, RestartedAgentHaltsItsTrainerAgain) {
  Job job;
  job.suspect(2);
  job.halts.clear();
  job.restart_agent(1);
  job.come_back(1);
  job.advance(3000);
  ASSERT_FALSE(job.halts[1].empty());
  EXPECT_EQ(job.halts[1].back().halt, job.halt().number);
}

// The paper's first case: rank 2 dies in the forward pass of 44, the others have 43.
TEST(HaltedJob, RestoresTheLiveIterationAfterAHalt) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank) job.rest(rank, 43);
  job.die(2, 43);
  job.suspect(2);
  for (const Rank rank : {0u, 1u, 3u}) {
    job.answer(rank, Freeze::held, 43);
  }
  for (const Rank rank : {0u, 1u, 3u}) {
    ASSERT_TRUE(job.snapshot(rank, 43));
    job.answer(rank, Freeze::captured, 43);
  }
  EXPECT_TRUE(job.halt().is_over);
  EXPECT_EQ(job.halt().captured, 3u);
  job.ready.clear();
  job.start_incarnation(own_node);
  job.advance(3000);
  for (Rank rank = 0; rank < ranks; ++rank) {
    ASSERT_TRUE(job.ready.contains(rank)) << rank;
    EXPECT_EQ(job.ready.at(rank).decision.checkpoint, CheckpointId(1, 43)) << rank;
    EXPECT_FALSE(job.ready.at(rank).decision.behind);
  }
}

TEST(HaltedJob, RestoresTheLastCommitWithoutTheDeadRanksOwnState) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank) job.rest(rank, 43);
  job.exit_trainer(2);
  job.suspect(2);
  for (const Rank rank : {0u, 1u, 3u}) ASSERT_TRUE(job.snapshot(rank, 43));
  job.ready.clear();
  job.start_incarnation(own_node);
  job.advance(3000);
  ASSERT_TRUE(job.ready.contains(0));
  EXPECT_EQ(job.ready.at(0).decision.checkpoint, CheckpointId(1, 40));
}

TEST(HaltedJob, CommitsLateCapturesAfterAFalseAlarm) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank) job.rest(rank, 43);
  job.suspect(2, RankTrouble::computing);
  for (Rank rank = 0; rank < ranks; ++rank) job.answer(rank, Freeze::held, 43);
  // One after the other: none is taken for a rank that has skipped the iteration.
  for (Rank rank = 0; rank < ranks; ++rank) {
    ASSERT_TRUE(job.snapshot(rank, 43)) << rank;
    job.advance(500);
    job.answer(rank, Freeze::captured, 43);
  }
  EXPECT_EQ(job.halt().captured, ranks);
  EXPECT_EQ(job.status(0).committed, CheckpointId(1, 43));
}

TEST(HaltedJob, ReportedTroubleHaltsTheJobWithoutBlamingARank) {
  Job job;
  job.feed(own_node(1), TroubleReported{1});
  job.advance(50);
  for (Rank rank = 0; rank < ranks; ++rank) EXPECT_EQ(job.halts[rank].size(), 1u) << rank;
  EXPECT_TRUE(job.halt().culprits.empty());
  EXPECT_EQ(job.halt().reporter, 1u);
  EXPECT_EQ(job.halt().reporter_node, own_node(1));
  job.suspect(2);
  ASSERT_EQ(job.halt().culprits.size(), 1u) << "it is found out later who held the others up";
  EXPECT_EQ(job.halt().culprits[0].standing.rank, 2u);
}

TEST(HaltedJob, TroubleOfARankThatHasNotRestoredHaltsNothing) {
  Job job(true);
  job.hello(own_node(1), 1);
  job.feed(own_node(1), TroubleReported{1});
  for (Rank rank = 0; rank < ranks; ++rank) job.exit_trainer(rank);
  job.halts.clear();
  job.start_incarnation(own_node);
  job.begin_training();
  job.advance(1000);
  EXPECT_TRUE(job.halts.empty());
}

TEST(HaltedJob, TroubleEndsWithItsIncarnation) {
  Job job;
  job.feed(own_node(1), TroubleReported{1});
  job.advance(50);
  job.halts.clear();
  job.start_incarnation(own_node);
  job.begin_training();
  job.advance(1000);
  EXPECT_EQ(job.halt(), Halt());
  EXPECT_TRUE(job.halts.empty());
}

TEST(HaltedJob, TroubleHaltsNoRankWithoutTheOption) {
  Job job(false);
  job.feed(own_node(1), TroubleReported{1});
  job.advance(1000);
  EXPECT_TRUE(job.halts.empty());
}

// A launcher may start a rank again faster than anybody notices that it has gone.
TEST(HaltedJob, NewTrainerWaitsUntilTheOtherRanksAreCaptured) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank) job.rest(rank, 43);
  job.die(2, 43);
  job.hello(own_node(2), 2);
  job.ask_restore(2);
  job.advance(500);
  EXPECT_EQ(job.incarnation(), 1u);
  EXPECT_TRUE(job.fenced.empty());
  for (const Rank rank : {0u, 1u, 3u}) job.answer(rank, Freeze::held, 43);
  for (const Rank rank : {0u, 1u, 3u}) {
    EXPECT_EQ(job.incarnation(), 1u) << rank;
    ASSERT_TRUE(job.snapshot(rank, 43));
    job.answer(rank, Freeze::captured, 43);
  }
  job.advance(500);
  EXPECT_EQ(job.incarnation(), 2u);
}

TEST(HaltedJob, EarlyRejoinDoesNotEndCapturesOfOtherRanks) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank) job.rest(rank, 43);
  job.die(2, 43);
  job.suspect(2);
  for (const Rank rank : {0u, 1u, 3u}) job.answer(rank, Freeze::held, 43);
  ASSERT_TRUE(job.snapshot(0, 43));
  job.answer(0, Freeze::captured, 43);
  job.ready.clear();
  const auto rejoin = [&](Rank rank) {
    job.exit_trainer(rank);
    job.hello(own_node(rank), rank);
    job.ask_restore(rank);
    job.advance(500);
  };
  rejoin(0);
  EXPECT_EQ(job.incarnation(), 1u);
  EXPECT_TRUE(job.fenced.empty());
  for (const Rank rank : {1u, 3u}) {
    ASSERT_TRUE(job.snapshot(rank, 43));
    job.answer(rank, Freeze::captured, 43);
  }
  for (const Rank rank : {1u, 3u}) rejoin(rank);
  EXPECT_EQ(job.incarnation(), 2u);
  EXPECT_TRUE(job.ready.empty()) << "the dead rank is awaited";
  job.hello(own_node(2), 2);
  job.ask_restore(2);
  job.advance(3000);
  for (Rank rank = 0; rank < ranks; ++rank) {
    ASSERT_TRUE(job.ready.contains(rank)) << rank;
    EXPECT_EQ(job.ready.at(rank).decision.checkpoint, CheckpointId(1, 43)) << rank;
    EXPECT_EQ(job.ready.at(rank).incarnation, 2u) << rank;
  }
  EXPECT_EQ(job.halt(), Halt());
}

TEST(HaltedJob, NewLeaderEndsNoIncarnationBeforeHearingItsRanks) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank) job.rest(rank, 43);
  bool is_heard = false;
  job.arrives = [&](NodeId, const Send& send) { return is_heard || !std::holds_alternative<Report>(send.message); };
  job.change_leader();
  const Rank restarted = *job.current_leader();
  job.exit_trainer(restarted);
  job.hello(own_node(restarted), restarted);
  job.ask_restore(restarted);
  job.advance(200);
  EXPECT_EQ(job.incarnation(), 1u);
  is_heard = true;
  job.advance(3000);
  EXPECT_EQ(job.incarnation(), 1u);
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (rank != restarted) job.answer(rank, Freeze::refused, 43);
  }
  job.advance(500);
  EXPECT_EQ(job.incarnation(), 2u);
}

TEST(HaltedJob, SilentRankDelaysTheNextIncarnationOnlyUntilTheDeadline) {
  Job job;
  job.hello(own_node(2), 2);
  job.ask_restore(2);
  job.advance(50'000);
  EXPECT_EQ(job.incarnation(), 1u);
  job.advance(15'000);
  EXPECT_EQ(job.incarnation(), 2u);
}

TEST(HaltedJob, NextIncarnationBeginsImmediatelyIfNoRankIsLeft) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank) job.exit_trainer(rank);
  job.halts.clear();
  job.hello(own_node(2), 2);
  job.advance(100);
  EXPECT_EQ(job.incarnation(), 2u);
  EXPECT_TRUE(job.halts.empty());
}

TEST(HaltedJob, NewTrainerEndsTheIncarnationImmediatelyWithoutTheOption) {
  Job job(false);
  job.hello(own_node(2), 2);
  job.advance(100);
  EXPECT_EQ(job.incarnation(), 2u);
}

TEST(HaltedJob, DoesNotWaitForARankStillInRestore) {
  Job job;
  job.suspect(2);
  for (const Rank rank : {0u, 1u, 3u}) job.answer(rank, Freeze::refused, 43);
  job.fetching = false;
  job.start_incarnation(own_node);
  job.advance(3000);
  ASSERT_EQ(job.incarnation(), 2u);
  job.exit_trainer(2);
  job.hello(own_node(2), 2);
  job.advance(500);
  EXPECT_EQ(job.incarnation(), 3u);
}

TEST(HaltedJob, IgnoresPiecesOfADeadRankInUngrantedSlots) {
  Job job;
  const SlotRef other_slot{1, "rank1.private", 0};
  job.feed(1, LeftBehind{1, {{other_slot, piece_of(other_slot.shard, {1, 43}, ranks)}}});
  job.exit_trainer(1);
  const auto pieces = job.status(1).pieces;
  EXPECT_TRUE(std::none_of(pieces.begin(), pieces.end(),
                           [](const PieceInfo& piece) { return piece.checkpoint == CheckpointId(1, 43); }));
}

// The agent of rank 2 started again just before, and the rank had not come back to it.
TEST(HaltedJob, CountsADeadRanksOwnStateAfterItsAgentRestarted) {
  Job job;
  for (Rank rank = 0; rank < ranks; ++rank) job.rest(rank, 43);
  const std::vector<SlotRef> granted = job.granted().at(2);
  const SlotRef& slot = granted.back();
  job.restart_agent(2, {{2, granted}});
  job.feed(2, LeftBehind{2, {{slot, piece_of(slot.shard, {1, 43}, ranks)}}});
  job.exit_trainer(2);
  const auto pieces = job.status(2).pieces;
  EXPECT_EQ(std::count_if(pieces.begin(), pieces.end(),
                          [](const PieceInfo& piece) { return piece.checkpoint == CheckpointId(1, 43); }),
            1);
}

// A former leader's halt is at 43. The next leader was not told of it, and suspects a rank before it has heard who was.
TEST(HaltedJob, NewLeaderHaltsNothingBeforeHearingAllNodes) {
  Job job;
  const NodeId former = *job.current_leader(), next = former == 0 ? 1 : 0;
  const auto cut_off = [&](NodeId node) {
    for (NodeId other = 0; other < ranks; ++other) job.cut.insert({{node, other}, {other, node}});
  };
  cut_off(next);
  job.suspect(3, RankTrouble::stopped);
  for (Rank rank = 0; rank < 3; ++rank) {
    if (rank != next) job.answer(rank, Freeze::held, 43);
  }
  job.advance(6000);
  const Halt halt = job.halt(former);
  ASSERT_EQ(halt.iteration, 43);
  cut_off(former);
  job.suspect(next);
  for (int i = 0; i < 400 && job.current_leader() != next; ++i) job.advance(50);
  ASSERT_EQ(job.current_leader(), next);
  job.advance(500);
  EXPECT_EQ(job.halt(next), Halt());
  job.cut.clear();
  job.advance(6000);
  EXPECT_EQ(job.halt(next).number, halt.number);
  EXPECT_EQ(job.halt(next).iteration, 43);
}

}  // namespace
}  // namespace ckpt::core::halted_job
