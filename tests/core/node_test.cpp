#include "core/node.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

using ::testing::HasSubstr;

TEST(Job, StartsFreshWhenNothingIsStored) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  ASSERT_EQ(cluster.ready.size(), 4u);
  EXPECT_EQ(cluster.ready.at(2).decision.verdict, Verdict::fresh);
  EXPECT_EQ(cluster.ready.at(2).incarnation, 1u);
  EXPECT_FALSE(cluster.ready.at(2).decision.status_unknown);
}

TEST(Job, CommitsOnlyWhenEveryShardHasAllCopies) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  for (Rank rank = 0; rank < 3; ++rank) cluster.snapshot(rank, 7);
  EXPECT_TRUE(cluster.commits.empty());
  cluster.snapshot(3, 7);
  ASSERT_EQ(cluster.commits.size(), 4u);
  EXPECT_EQ(cluster.commits.at(0), CheckpointId(1, 7));
  EXPECT_EQ(cluster.status(0).copies_now, 2u);
}

TEST(Job, DoesNotCommitWhileACopyIsUnderWay) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.fetching = false;
  cluster.snapshot_all(0);
  cluster.advance(1000);
  EXPECT_TRUE(cluster.commits.empty());
  EXPECT_EQ(cluster.held_fetches.size(), 4u);  // main and private shard, both ways
}

TEST(Job, RestoresALostNodesRankFromItsPeer) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(5);
  cluster.lose(1);
  cluster.boot(1);
  cluster.ready.clear();
  cluster.start_incarnation(own_node);
  cluster.advance(6000);  // the leader may have been on the lost node
  ASSERT_EQ(cluster.ready.size(), 4u);
  EXPECT_EQ(cluster.incarnation(), 2u);
  for (const auto& [rank, ready] : cluster.ready) {
    EXPECT_EQ(ready.decision.verdict, Verdict::restore);
    EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 5));
    ASSERT_EQ(ready.main.size(), 1u);
    EXPECT_EQ(ready.main[0].tier, rank == 1 ? Tier::peer : Tier::local) << rank;
    EXPECT_FALSE(ready.decision.behind);
  }
}

TEST(Job, ReestablishesRedundancyBeforeTheNextSnapshot) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(5);
  cluster.lose(1);
  cluster.boot(1);
  cluster.start_incarnation(own_node);
  cluster.advance(6000);
  EXPECT_EQ(cluster.status(0).copies_now, 2u);
  EXPECT_NE(cluster.status(1).pieces.size(), 2u);  // the shards of rank 0 came back too
}

TEST(Job, ReportsLostStateWhenBothNodesOfAGroupAreLost) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(5);
  cluster.lose(2);
  cluster.lose(3);
  cluster.boot(2);
  cluster.boot(3);
  cluster.start_incarnation(own_node);
  cluster.advance(12000);
  ASSERT_EQ(cluster.failed.size(), 4u);
  EXPECT_EQ(cluster.failed.at(0).error, RestoreError::lost);
  EXPECT_THAT(cluster.failed.at(0).text, HasSubstr("iteration 5"));
  EXPECT_THAT(cluster.failed.at(0).text, HasSubstr("rank2"));
}

TEST(Job, FindsItsStateWhenRanksComeBackPermuted) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(3);
  cluster.ready.clear();
  cluster.start_incarnation([](Rank rank) { return (rank + 1) % 4; });
  cluster.advance(1000);
  ASSERT_EQ(cluster.ready.size(), 4u);
  for (const auto& [rank, ready] : cluster.ready) EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 3)) << rank;
}

TEST(Job, ServesSeveralRanksOfANode) {
  Cluster cluster(2, 4);
  cluster.start_incarnation([](Rank rank) { return rank / 2; });
  cluster.begin_training();
  cluster.snapshot_all(0);
  EXPECT_EQ(cluster.commits.size(), 4u);
  EXPECT_EQ(cluster.status(0).pieces.size(), 8u);
}

TEST(Job, SecondHelloOfARankBeginsTheNextIncarnationAndFencesTheOld) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(0);
  cluster.hello(0, 0);
  EXPECT_EQ(cluster.incarnation(), 2u);
  ASSERT_TRUE(cluster.fenced.contains(1));
  EXPECT_EQ(cluster.fenced.at(1).incarnation, 2u);
}

TEST(Job, SkipAppliesToTheWholeJobAndNamesTheNextIteration) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.feed(1, Progress{1, 4, -1});  // rank 1 cannot take 4
  cluster.snapshot(0, 4);
  EXPECT_EQ(cluster.resume_at[0], 5);
  EXPECT_EQ(cluster.resume_at[1], 5);
  EXPECT_TRUE(cluster.status(0).pieces.empty());
  cluster.snapshot_all(5);
  EXPECT_EQ(cluster.commits.at(0), CheckpointId(1, 5));
}

// Ranks that had the time to learn of it may still copy an earlier iteration. For that, a few iterations are enough.
TEST(Job, NamesADistantIterationOnlyIfRanksLearnedTooLate) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  std::int64_t next = 4;
  const auto ahead_after_a_miss = [&] {
    cluster.feed(1, Progress{1, next, -1});
    cluster.snapshot(0, next);
    return cluster.resume_at[0] - std::exchange(next, cluster.resume_at[0]);
  };
  EXPECT_EQ(ahead_after_a_miss(), 1);
  EXPECT_EQ(ahead_after_a_miss(), 2);
  EXPECT_EQ(ahead_after_a_miss(), 3);
  EXPECT_EQ(ahead_after_a_miss(), 5);
  EXPECT_EQ(ahead_after_a_miss(), 9);
  cluster.advance(3000);
  EXPECT_EQ(ahead_after_a_miss(), 5);
  cluster.advance(3000);
  EXPECT_EQ(ahead_after_a_miss(), 5);
}

TEST(Job, NeverReusesTheCommittedSlotBeforeANewerCommit) {
  Cluster cluster(2, 2);
  cluster.own_slots = 3;
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(0);
  cluster.fetching = false;
  EXPECT_TRUE(cluster.snapshot(0, 1));
  EXPECT_TRUE(cluster.snapshot(0, 2));
  EXPECT_FALSE(cluster.granted().contains(0));  // committed, replicating, replicating: no slot is left
  EXPECT_FALSE(cluster.snapshot(0, 3));
}

TEST(Job, DoesNotGrantASlotThatIsStillBeingRead) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.releasing = false;
  cluster.snapshot_all(0);
  cluster.snapshot_all(1);  // drops 0, whose slot keeps a reader
  cluster.snapshot_all(2);  // commits only where a holder's slot is free
  EXPECT_FALSE(cluster.granted().contains(0));
  for (const SlotRef& slot : std::exchange(cluster.held_releases, {})) {
    cluster.feed(0, SlotReleased{slot});
    cluster.feed(1, SlotReleased{slot});
  }
  cluster.releasing = true;
  cluster.advance(500);
  EXPECT_TRUE(cluster.granted().contains(0));
}

TEST(Job, CommitSurvivesTheLossOfTheLeader) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(9);
  const NodeId old_leader = *cluster.current_leader();
  cluster.lose(old_leader);
  cluster.boot(old_leader);
  cluster.ready.clear();
  cluster.start_incarnation(own_node);
  cluster.advance(12000);
  ASSERT_EQ(cluster.ready.size(), 4u);
  EXPECT_EQ(cluster.ready.at(0).decision.checkpoint, CheckpointId(1, 9));
}

// Incarnations are counted in the store. Without its records the next one would come before what there is to restore.
TEST(Job, ContinuesFromMemoryAfterTheStoreLosesItsRecords) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(5);
  ASSERT_EQ(cluster.commits.at(0), CheckpointId(2, 5));
  cluster.lose_records();
  cluster.start_incarnation(own_node);
  cluster.advance(12000);
  ASSERT_EQ(cluster.ready.size(), 2u);
  EXPECT_EQ(cluster.ready.at(0).decision.checkpoint, CheckpointId(2, 5));
  EXPECT_EQ(cluster.incarnation(), 3u);
  cluster.begin_training();
  cluster.snapshot_all(6);
  EXPECT_EQ(cluster.commits.at(0), CheckpointId(3, 6));
}

TEST(Job, DoesNotReuseTheIncarnationNumberOfARunningTrainer) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  cluster.lose_records();
  cluster.hello(1, 1, 1);
  cluster.hello(0, 0);
  EXPECT_EQ(cluster.incarnation(), 2u);
}

TEST(Job, BeginsALaterIncarnationAfterLearningOfOlderOnes) {
  Cluster cluster(3, 3);
  cluster.start_incarnation(own_node);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(5);
  cluster.cut = {{0, 1}, {1, 0}, {0, 2}, {2, 0}};
  cluster.boot(0);  // a new machine, which leads when the records are gone, and has not heard of anybody
  cluster.lose_records();
  cluster.hello(0, 0);
  ASSERT_EQ(cluster.incarnation(), 1u);
  cluster.cut.clear();
  cluster.hello(1, 1);
  cluster.hello(2, 2);
  for (Rank rank = 0; rank < 3; ++rank) cluster.ask_restore(rank);
  cluster.advance(12000);
  ASSERT_EQ(cluster.ready.size(), 3u);
  EXPECT_EQ(cluster.ready.at(0).decision.checkpoint, CheckpointId(2, 5));
  EXPECT_EQ(cluster.incarnation(), 3u);
  cluster.begin_training();
  cluster.snapshot_all(6);
  EXPECT_EQ(cluster.commits.at(0), CheckpointId(3, 6));
}

// No node remembers an epoch, and the first one of the new leader's is below that of the incarnation's record.
TEST(Job, ElectsALeaderAfterLosingTheLeadersRecordAndAllMemory) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  cluster.change_leader();
  cluster.advance(5000);
  ASSERT_GT(cluster.incarnation_record().epoch, 1u);
  cluster.lose_leader_record();
  for (const NodeId node : {0u, 1u}) cluster.lose(node);
  for (const NodeId node : {0u, 1u}) cluster.boot(node);
  cluster.ready.clear();
  cluster.start_incarnation(own_node);
  cluster.advance(15'000);
  EXPECT_EQ(cluster.ready.size(), 2u);
}

TEST(Job, KeepsItsLeaderIfRecordsAreLostWhileAllAgentsRun) {
  for (const bool all_are : {false, true}) {
    Cluster cluster(2, 2);
    cluster.start_incarnation(own_node);
    cluster.begin_training();
    const NodeId leader = *cluster.current_leader();
    const std::uint64_t epoch = cluster.status(leader).epoch;
    if (all_are) cluster.lose_incarnation_record();
    cluster.lose_leader_record();
    for (std::int64_t iteration = 1; iteration < 20; ++iteration) {
      cluster.snapshot_all(iteration);
      cluster.advance(1000);
      ASSERT_EQ(cluster.commits.at(0).iteration(), iteration);
    }
    EXPECT_EQ(cluster.current_leader(), leader);
    EXPECT_EQ(cluster.status(1 - leader).epoch, epoch);
  }
}

// Those that are left know its revision, and see only older ones.
TEST(Job, ElectsALeaderAfterLosingTheLeaderAndItsRecord) {
  for (const bool is_back_first : {false, true}) {
    Cluster cluster(3, 3);
    cluster.start_incarnation(own_node);
    cluster.begin_training();
    cluster.advance(5000);
    const NodeId former = *cluster.current_leader();
    cluster.lose_leader_record();
    cluster.lose(former);
    if (is_back_first) cluster.boot(former);
    cluster.advance(10'000);
    ASSERT_TRUE(cluster.current_leader());
    EXPECT_EQ(cluster.status(*cluster.current_leader()).nodes_present.size(), is_back_first ? 3u : 2u);
    cluster.change_leader();
    cluster.advance(5000);
    EXPECT_TRUE(cluster.current_leader());
  }
}

TEST(Job, ReplacesALeaderThatReachesOnlyTheStore) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  const NodeId former = *cluster.current_leader();
  for (NodeId node = 0; node < 4; ++node) {
    if (node != former) cluster.cut.insert({former, node});  // it hears them, they do not hear it
  }
  cluster.advance(20000);
  ASSERT_TRUE(cluster.current_leader());
  EXPECT_NE(*cluster.current_leader(), former);
}

TEST(Job, KeepsALeaderThatIsTheOnlyNode) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  const NodeId leader = *cluster.current_leader();
  const std::uint64_t epoch = cluster.status(leader).epoch;
  cluster.lose(1 - leader);
  cluster.advance(20000);
  EXPECT_TRUE(cluster.status(leader).is_leader);
  EXPECT_EQ(cluster.status(leader).epoch, epoch);
}

TEST(Job, DoesNotWaitForANodeThatCannotHoldANewerCommit) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(1);
  for (Rank rank = 0; rank < 3; ++rank) cluster.snapshot(rank, 2);  // rank 3's 2 may exist on node 3 alone
  cluster.lose(3);
  cluster.boot(4);
  cluster.ready.clear();
  cluster.advance(4000);
  cluster.start_incarnation([](Rank rank) { return rank == 3 ? 4u : rank; });
  ASSERT_EQ(cluster.ready.size(), 4u);
  EXPECT_EQ(cluster.ready.at(0).decision.checkpoint, CheckpointId(1, 1));
  EXPECT_FALSE(cluster.ready.at(0).decision.status_unknown);
}

TEST(Job, WaitsForMissingMembersWhenTheyCouldChangeTheChoice) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(1);
  for (const NodeId node : {2u, 3u}) cluster.lose(node);  // a whole group
  for (const NodeId node : {4u, 5u}) cluster.boot(node);
  cluster.advance(4000);
  cluster.ready.clear();
  cluster.start_incarnation([](Rank rank) { return rank < 2 ? rank : rank + 2; });
  EXPECT_TRUE(cluster.failed.empty());
  cluster.advance(6000);
  EXPECT_TRUE(cluster.ready.empty());
  EXPECT_EQ(cluster.failed.size(), 4u);
}

TEST(Job, ChoosesNoCheckpointThatOnlyADeadNodeHad) {
  Cluster cluster(4, 4);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(1);
  cluster.fetching = false;
  cluster.snapshot_all(2);  // each on its own node alone
  cluster.lose(3);          // its last report is fresh
  cluster.boot(4);
  cluster.ready.clear();
  cluster.fetching = true;
  cluster.start_incarnation([](Rank rank) { return rank == 3 ? 4u : rank; });
  cluster.advance(10000);
  ASSERT_EQ(cluster.ready.size(), 4u);
  for (const auto& [rank, ready] : cluster.ready) EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 1)) << rank;
}

TEST(Job, RefusesAnotherWorldSize) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(0);
  cluster.feed(0, TrainerHello{0, 999, 0, 1, main_shard(0), private_shard(0)});
  cluster.feed(0, RestoreAsked{0});
  cluster.advance(12000);
  ASSERT_TRUE(cluster.failed.contains(0));
  EXPECT_EQ(cluster.failed.at(0).error, RestoreError::mismatch);
  EXPECT_THAT(cluster.failed.at(0).text, HasSubstr("2 ranks, and this job has 1"));
}

// Three ranks that share a shard, each of which captures all of it.
class Sharers : public ::testing::Test {
 protected:
  static constexpr Rank ranks = 3;

  Sharers() : cluster_(0, ranks) {
    cluster_.protection = placement::Protection::of_copies(ranks);
    cluster_.main_of = [](Rank) { return "shared"; };
    for (NodeId node = 0; node < ranks; ++node) cluster_.boot(node);
    cluster_.advance(100);
    begin();
    cluster_.snapshot_all(1);
  }
  void begin() {
    cluster_.ready.clear();
    cluster_.start_incarnation(own_node);
    cluster_.advance(9000);
    cluster_.begin_training();
  }
  void capture(Rank rank, std::int64_t iteration, bool is_wrong) {
    const CheckpointId checkpoint(cluster_.incarnation(), iteration);
    PieceInfo shared = piece_of("shared", checkpoint, ranks);
    shared.root_digest += is_wrong ? 1 : 0;
    cluster_.feed(rank, Captured{rank, {shared, piece_of(private_shard(rank), checkpoint, ranks)}});
    cluster_.advance(50);
  }

  Cluster cluster_;
};

TEST_F(Sharers, CommitNothingIfTheyDisagreeAndAreReported) {
  for (Rank rank = 0; rank < ranks; ++rank) capture(rank, 2, rank == 1);
  EXPECT_THAT(cluster_.status(0).alarm, HasSubstr("shard shared of iteration 2 differs"));
  EXPECT_THAT(cluster_.status(0).alarm, HasSubstr("node 1 does not match node 0"));
  EXPECT_EQ(cluster_.status(0).committed, CheckpointId(1, 1));
}

// Else the one that is still to come could be lost with what it has, and the wrong one be taken for the right one.
TEST_F(Sharers, DropACheckpointOnWhichTheyDisagreeWhileAnotherIsSilent) {
  const NodeId leader = *cluster_.current_leader();
  const NodeId silent = leader == 2 ? 1 : 2, other = 3 - leader - silent;
  cluster_.stop(silent);
  cluster_.advance(3000);  // it counts as missing
  capture(leader, 2, false);
  capture(other, 2, true);
  EXPECT_THAT(cluster_.status(leader).alarm, HasSubstr("shard shared of iteration 2 differs"));
  for (const NodeId node : {leader, other})
    EXPECT_EQ(cluster_.find_slot(node, piece_of("shared", CheckpointId(1, 2), ranks)), nullptr);
}

TEST_F(Sharers, AreComparedInTheNextIncarnationIfTheirsEndsEarly) {
  const NodeId leader = *cluster_.current_leader();
  for (NodeId node = 0; node < ranks; ++node) {
    if (node != leader) cluster_.cut.insert({node, leader});
  }
  for (Rank rank = 0; rank < ranks; ++rank) capture(rank, 2, rank == 1);
  EXPECT_EQ(cluster_.status(leader).alarm, "");
  cluster_.lose(leader);
  cluster_.boot(leader);
  cluster_.cut.clear();
  begin();
  ASSERT_EQ(cluster_.ready.size(), ranks);
  EXPECT_EQ(cluster_.incarnation(), 2u);
  EXPECT_THAT(cluster_.status(0).alarm, HasSubstr("shard shared of iteration 2 differs"));
  EXPECT_EQ(cluster_.ready.at(0).decision.checkpoint, CheckpointId(1, 1));
}

// Whatever later leaders were told of placement.
TEST(Job, LaterLeadersKeepTheIncarnationsPlacement) {
  Cluster cluster(4, 4);
  const NodeId leader = *cluster.current_leader();
  cluster.strategy = placement::Strategy::ring;
  for (NodeId node = 0; node < 4; ++node) {
    if (node != leader) cluster.boot(node);
  }
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(0);
  const auto holders_of = [&](CheckpointId checkpoint) {
    std::set<std::pair<NodeId, std::string>> holders;
    for (NodeId node = 0; node < 4; ++node) {
      for (const PieceInfo& piece : cluster.status(node).pieces) {
        if (piece.checkpoint == checkpoint) holders.insert({node, piece.shard});
      }
    }
    return holders;
  };
  const auto placed = holders_of(CheckpointId(1, 0));
  ASSERT_EQ(placed.size(), 16u);
  cluster.change_leader();
  cluster.advance(3000);
  cluster.snapshot_all(1);
  cluster.advance(1000);
  EXPECT_EQ(cluster.commits.at(0), CheckpointId(1, 1));
  EXPECT_EQ(holders_of(CheckpointId(1, 1)), placed);
}

// The store is slow with a decision, and a rank is at home on another node when it comes.
TEST(Job, BeginsANewIncarnationIfARankMovedBeforeTheDecision) {
  Cluster cluster(4, 4);
  for (Rank rank = 0; rank < 4; ++rank) cluster.hello(rank, rank);
  for (Rank rank = 0; rank < 3; ++rank) cluster.ask_restore(rank);
  cluster.swapping = false;
  cluster.ask_restore(3);
  cluster.advance(1000);
  ASSERT_FALSE(cluster.held_swaps.empty());
  cluster.exit_trainer(3);
  cluster.advance(500);
  cluster.hello(0, 3);
  cluster.ask_restore(3);
  cluster.advance(500);
  cluster.release_swaps();
  cluster.advance(3000);
  EXPECT_EQ(cluster.incarnation(), 2u);
  cluster.ready.clear();
  cluster.start_incarnation([](Rank rank) { return rank == 3 ? 0 : rank; });
  cluster.advance(9000);
  ASSERT_EQ(cluster.ready.size(), 4u);
  cluster.begin_training();
  cluster.snapshot_all(0);
  cluster.advance(1000);
  EXPECT_EQ(cluster.commits.at(3), CheckpointId(cluster.incarnation(), 0));
}

TEST(Job, FetchesAQuarantinedPieceAgain) {
  Cluster cluster(2, 2);
  cluster.start_incarnation(own_node);
  cluster.begin_training();
  cluster.snapshot_all(0);
  const auto pieces = cluster.status(0).pieces.size();
  for (std::uint8_t slot = 0; slot < cluster.own_slots; ++slot)
    cluster.feed(0, PieceCorrupt{SlotRef{0, main_shard(0), slot}});
  EXPECT_EQ(cluster.status(0).pieces.size(), pieces - 1);
  cluster.advance(500);
  EXPECT_EQ(cluster.status(0).pieces.size(), pieces);
}

}  // namespace
}  // namespace ckpt::core
