// A job whose ranks share one main shard restarts with another number of ranks, from what memory holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

using ::testing::HasSubstr;

std::string model(Rank) { return "model"; }

class Elastic : public ::testing::Test {
 protected:
  // As many nodes as there are ranks at most, one rank on each. It has committed the iterations up to `iteration`.
  void begin(std::uint32_t nodes, std::uint32_t ranks, std::uint32_t copies = 2) {
    cluster_.emplace(nodes, ranks, copies);
    set_up();
    cluster_->start_incarnation(own_node);
    cluster_->begin_training();
    train_until(3);
  }
  void set_up() { cluster_->main_of = model; }
  void train_until(std::int64_t last) {
    for (std::int64_t k = last - 2; k <= last; ++k) {
      cluster_->snapshot_all(k);
      cluster_->advance(500);
    }
    ASSERT_EQ(cluster_->commits.at(0), CheckpointId(cluster_->incarnation(), last));
  }
  // The ranks get `checkpoint`; those from `own` on get rank 0's private shard.
  void expect_restored(std::uint32_t ranks, CheckpointId checkpoint, Rank own) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(cluster_->ready.contains(rank)) << rank;
      const RestoreReady& ready = cluster_->ready.at(rank);
      EXPECT_EQ(ready.decision.checkpoint, checkpoint) << rank;
      EXPECT_EQ(ready.private_.slot.shard, private_shard(rank < own ? rank : 0)) << rank;
      EXPECT_FALSE(ready.decision.behind || ready.decision.status_unknown) << ready.decision.text;
    }
  }
  // No node keeps anything older than the newest commit, nor memory for it.
  void expect_nothing_older(std::uint32_t nodes) {
    for (NodeId node = 0; node < nodes; ++node) {
      for (const PieceInfo& piece : cluster_->status(node).pieces)
        EXPECT_GE(piece.checkpoint, cluster_->commits.at(0)) << piece.shard << " on node " << node;
    }
  }

  std::optional<Cluster> cluster_;
};

TEST_F(Elastic, FewerRanksContinueFromTheNewestCommit) {
  begin(4, 4);
  cluster_->restart_with(2, own_node);
  cluster_->advance(1000);
  expect_restored(2, CheckpointId(1, 3), 2);
  EXPECT_EQ(cluster_->ready.at(0).main.size(), 4u) << "as many parts as ranks captured it";
  cluster_->begin_training();
  EXPECT_EQ(cluster_->incarnation_record().base, CheckpointId(1, 3));
  train_until(6);
  expect_nothing_older(4);
  EXPECT_TRUE(cluster_->status(3).pieces.empty()) << "nothing is left on a node without ranks";
}

TEST_F(Elastic, MoreRanksContinueAndNewOnesAdoptRank0sState) {
  begin(4, 2);
  cluster_->restart_with(4, own_node);
  cluster_->advance(1000);
  expect_restored(4, CheckpointId(1, 3), 2);
  cluster_->begin_training();
  train_until(6);
  cluster_->restart_with(4, own_node);
  cluster_->advance(1000);
  expect_restored(4, CheckpointId(2, 6), 4);
}

TEST_F(Elastic, ShrinksAndGrowsAgain) {
  begin(4, 4);
  cluster_->restart_with(2, own_node);
  cluster_->advance(1000);
  cluster_->begin_training();
  train_until(6);
  cluster_->restart_with(4, own_node);
  cluster_->advance(1000);
  expect_restored(4, CheckpointId(2, 6), 2);
  cluster_->begin_training();
  train_until(9);
  expect_nothing_older(4);
}

// What ranks 2 and 3 had is void since then, whether it is still there or not.
TEST_F(Elastic, DroppedCapturesStayVoidBeforeTheShrunkJobsFirstCommit) {
  for (const bool lost : {false, true}) {
    begin(4, 4);
    cluster_->restart_with(2, own_node);
    cluster_->advance(1000);
    cluster_->begin_training();
    cluster_->end_trainers();
    if (lost) {
      cluster_->boot(2);
      cluster_->boot(3);
    }
    for (int time = 0; time < 2; ++time) {
      cluster_->restart_with(4, own_node);
      cluster_->advance(8000);
      expect_restored(4, CheckpointId(1, 3), 2);
    }
  }
}

TEST_F(Elastic, RestoresWithoutNodesThatLeft) {
  begin(4, 4, 3);
  cluster_->end_trainers();
  cluster_->lose(3);
  cluster_->lose(2);
  cluster_->advance(3000);
  cluster_->restart_with(2, own_node);
  cluster_->advance(8000);
  expect_restored(2, CheckpointId(1, 3), 2);
  cluster_->begin_training();
  train_until(6);
}

TEST_F(Elastic, UsesNodesWithoutRanksAsSources) {
  begin(4, 4);
  cluster_->end_trainers();
  // Ranks 0 and 1 move to where nothing of theirs is.
  cluster_->boot(4);
  cluster_->boot(5);
  cluster_->restart_with(2, [](Rank rank) { return rank + 4; });
  cluster_->advance(1000);
  expect_restored(2, CheckpointId(1, 3), 2);
  cluster_->begin_training();
  train_until(6);
  expect_nothing_older(6);
}

TEST_F(Elastic, DecodesPiecesOfANodeThatLeft) {
  cluster_.emplace(4, 4, 1);
  set_up();
  cluster_->protection = placement::protection_named("rs(4,1)");
  for (NodeId node = 0; node < 4; ++node) cluster_->boot(node);
  cluster_->start_incarnation(own_node);
  cluster_->begin_training();
  train_until(3);
  cluster_->end_trainers();
  cluster_->lose(0);
  cluster_->advance(3000);
  cluster_->restart_with(3, [](Rank rank) { return rank + 1; });
  cluster_->advance(8000);
  expect_restored(3, CheckpointId(1, 3), 3);
  cluster_->begin_training();
  train_until(6);
}

TEST_F(Elastic, LeaderChangeDuringTheRestoreChangesNothing) {
  begin(4, 2);
  cluster_->fetching = false;
  cluster_->restart_with(4, own_node);
  cluster_->advance(1000);
  cluster_->change_leader();
  cluster_->release_fetches();
  cluster_->advance(1000);
  expect_restored(4, CheckpointId(1, 3), 2);
  cluster_->begin_training();
  train_until(6);
}

TEST_F(Elastic, RefusesAndKeepsStateThatRanksDoNotShare) {
  for (const auto& names : std::vector<std::function<std::string(Rank)>>{
           main_shard, [](Rank rank) { return rank < 2 ? "first" : "second"; }}) {
    cluster_.emplace(4, 4);
    cluster_->main_of = names;
    cluster_->start_incarnation(own_node);
    cluster_->begin_training();
    train_until(3);
    for (const std::uint32_t ranks : {2u, 5u}) {
      cluster_->restart_with(ranks, [](Rank rank) { return rank % 4; });
      cluster_->advance(8000);
      ASSERT_TRUE(cluster_->failed.contains(0)) << ranks;
      EXPECT_EQ(cluster_->failed.at(0).error, RestoreError::mismatch);
      EXPECT_THAT(cluster_->failed.at(0).text,
                  HasSubstr("Start 4 ranks. Otherwise load a checkpoint from storage with "));
    }
    cluster_->restart_with(4, own_node);
    cluster_->advance(1000);
    expect_restored(4, CheckpointId(1, 3), 4);
  }
}

// All nodes with the second half of the model are gone, and so are the records that could tell of it.
TEST_F(Elastic, RefusesACheckpointThatMayBeIncomplete) {
  cluster_.emplace(4, 4);
  cluster_->main_of = [](Rank rank) { return rank < 2 ? "first" : "second"; };
  cluster_->start_incarnation(own_node);
  cluster_->begin_training();
  train_until(3);
  cluster_->end_trainers();
  cluster_->lose(2);
  cluster_->lose(3);
  cluster_->lose_records();
  cluster_->restart_with(2, own_node);
  cluster_->advance(20000);
  EXPECT_FALSE(cluster_->ready.contains(0));
  ASSERT_TRUE(cluster_->failed.contains(0));
  EXPECT_EQ(cluster_->failed.at(0).error, RestoreError::mismatch);
}

TEST_F(Elastic, SurvivesANodeLossBetweenRestartAndFirstCommit) {
  for (const NodeId node : {0u, 1u, 3u}) {
    begin(4, 4);
    cluster_->restart_with(2, own_node);
    cluster_->advance(2000);
    cluster_->begin_training();
    cluster_->end_trainers();
    cluster_->boot(node);
    cluster_->restart_with(2, own_node);
    cluster_->advance(8000);
    expect_restored(2, CheckpointId(1, 3), 2);
    cluster_->begin_training();
    train_until(6);
  }
}

// Its end is not known yet when the next one begins.
TEST_F(Elastic, EndedStartThatWasNeverDecidedBlocksNoLaterOne) {
  cluster_.emplace(4, 4);
  set_up();
  for (Rank rank = 1; rank < 4; ++rank) cluster_->hello(rank, rank);
  cluster_->advance(500);
  for (NodeId node = 1; node < 4; ++node) cluster_->lose(node);
  cluster_->restart_with(1, own_node);
  cluster_->advance(5000);
  EXPECT_TRUE(cluster_->ready.contains(0));
}

TEST_F(Elastic, RefusesRanksOfOneStartThatDisagree) {
  cluster_.emplace(3, 3);
  set_up();
  cluster_->hello(1, 1);
  cluster_->hello(2, 2);
  cluster_->advance(500);
  cluster_->feed(0, TrainerHello{0, 77, 0, 2, "model", private_shard(0)});
  cluster_->feed(0, RestoreAsked{0, false});
  cluster_->advance(500);
  EXPECT_FALSE(cluster_->failed.contains(0));
  cluster_->advance(4000);
  ASSERT_TRUE(cluster_->failed.contains(0));
  EXPECT_THAT(cluster_->failed.at(0).text, HasSubstr("start all ranks with one world_size"));
}

}  // namespace
}  // namespace ckpt::core
