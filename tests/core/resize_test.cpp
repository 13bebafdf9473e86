// A job whose ranks have different main shards restarts with another number of ranks. They take over the old shards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

NodeId on_three(Rank rank) { return rank % 3; }

// Two ranks share each main shard, as replicas do.
std::string shared_by_two(Rank rank) { return main_shard(rank / 2 * 2) + ".and1"; }

class Resize : public ::testing::Test {
 protected:
  void begin(std::uint32_t nodes, std::uint32_t ranks) {
    cluster_.emplace(nodes, ranks);
    cluster_->takes_shards = true;
    cluster_->start_incarnation(own_node);
    cluster_->begin_training();
    train_until(3);
  }
  void train_until(std::int64_t last) {
    for (std::int64_t k = last - 2; k <= last; ++k) {
      cluster_->snapshot_all(k);
      cluster_->advance(500);
    }
    ASSERT_EQ(cluster_->commits.at(0), CheckpointId(cluster_->incarnation(), last));
  }
  void restart_with(std::uint32_t ranks, const std::function<NodeId(Rank)>& node_of = own_node) {
    cluster_->restart_with(ranks, node_of);
    cluster_->advance(8000);
  }
  // All pieces that the rank restores.
  std::vector<std::string> taken_by(Rank rank) const {
    const auto found = cluster_->ready.find(rank);
    if (found == cluster_->ready.end()) return {};
    EXPECT_TRUE(found->second.main.empty()) << rank;
    std::vector<std::string> shards{found->second.private_.slot.shard};
    for (const RestoreSource& source : found->second.taken) shards.push_back(source.slot.shard);
    return shards;
  }
  // The ranks together got all shards of `before` ranks, at this checkpoint.
  void expect_all_taken(std::uint32_t before, std::uint32_t after, CheckpointId checkpoint) {
    std::set<std::string> all, wanted;
    for (Rank rank = 0; rank < before; ++rank) wanted.insert({main_shard(rank), private_shard(rank)});
    for (Rank rank = 0; rank < after; ++rank) {
      ASSERT_TRUE(cluster_->ready.contains(rank)) << rank;
      EXPECT_EQ(cluster_->ready.at(rank).decision.checkpoint, checkpoint);
      EXPECT_EQ(cluster_->ready.at(rank).private_.slot.shard, private_shard(rank < before ? rank : 0));
      for (const std::string& shard : taken_by(rank)) all.insert(shard);
    }
    EXPECT_EQ(all, wanted);
  }

  std::optional<Cluster> cluster_;
};

TEST_F(Resize, EachOfNRanksTakesOverEveryNthShard) {
  begin(4, 4);
  restart_with(3);
  expect_all_taken(4, 3, CheckpointId(1, 3));
  EXPECT_THAT(taken_by(0), UnorderedElementsAre("rank0", "rank0.private", "rank3", "rank3.private"));
  EXPECT_THAT(taken_by(1), UnorderedElementsAre("rank1", "rank1.private"));
  cluster_->begin_training();
  train_until(6);
  for (NodeId node = 0; node < 4; ++node) {
    for (const PieceInfo& piece : cluster_->status(node).pieces)
      EXPECT_GE(piece.checkpoint, CheckpointId(2, 6)) << piece.shard << " on node " << node;
  }
  restart_with(3);
  EXPECT_EQ(cluster_->ready.at(2).main.size(), 1u) << "the next restart is an ordinary one";
}

TEST_F(Resize, AdditionalRanksAdoptRank0sPrivateShard) {
  begin(4, 2);
  restart_with(4);
  expect_all_taken(2, 4, CheckpointId(1, 3));
  EXPECT_THAT(taken_by(3), UnorderedElementsAre("rank0.private"));
  cluster_->begin_training();
  train_until(6);
}

TEST_F(Resize, SurvivesTheLossOfANodeWithItsRanks) {
  for (const NodeId lost : {0u, 3u}) {
    begin(4, 4);
    cluster_->end_trainers();
    cluster_->lose(lost);
    restart_with(3, [&](Rank rank) { return rank < lost ? rank : rank + 1; });
    expect_all_taken(4, 3, CheckpointId(1, 3));
  }
}

// They end before they have committed anything.
TEST_F(Resize, AnyNumberOfRanksRestoresACheckpointThatOthersTookOver) {
  begin(4, 4);
  for (const std::uint32_t ranks : {3u, 2u, 3u}) {
    restart_with(ranks);
    cluster_->begin_training();
    expect_all_taken(4, ranks, CheckpointId(1, 3));
  }
  restart_with(4);
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(cluster_->ready.at(rank).main.size(), 1u) << rank;
}

TEST_F(Resize, RestoresLostCopiesBeforeTheFirstCommit) {
  begin(4, 4);
  restart_with(3);
  cluster_->begin_training();
  cluster_->end_trainers();
  cluster_->boot(0);
  restart_with(3);
  expect_all_taken(4, 3, CheckpointId(1, 3));
}

TEST_F(Resize, NewLeaderKnowsWhichRanksTakeOverWhichShards) {
  begin(4, 4);
  cluster_->fetching = false;
  cluster_->restart_with(3, on_three);
  cluster_->advance(1000);
  cluster_->change_leader();
  cluster_->release_fetches();
  cluster_->advance(2000);
  expect_all_taken(4, 3, CheckpointId(1, 3));
}

TEST_F(Resize, NeverOmitsAShardThatIsLost) {
  begin(4, 4);
  cluster_->fetching = false;  // or a node would fetch it again before the next one loses it
  for (NodeId node = 0; node < 4; ++node) {
    if (cluster_->find_slot(node, piece_of("rank3", CheckpointId(1, 3), 4)) != nullptr)
      cluster_->rot(node, "rank3", CheckpointId(1, 3));
  }
  cluster_->restart_with(3, on_three);
  cluster_->advance(8000);
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(cluster_->ready.contains(rank)) << rank;
    EXPECT_TRUE(cluster_->failed.contains(rank)) << rank;
  }
}

// A rank may take over no more shards than fit into the record of its assignment.
TEST_F(Resize, OneRankTakesOverAsManyShardsAsARecordHolds) {
  for (const std::uint32_t ranks : {40u, 80u}) {
    begin(ranks, ranks);
    restart_with(1);
    EXPECT_EQ(cluster_->ready.contains(0), 2 * ranks <= taken_shards_max) << ranks;
    EXPECT_EQ(cluster_->failed.contains(0), 2 * ranks > taken_shards_max) << ranks;
  }
}

// A job of one rank names one main shard. That does not prove that the checkpoint it took over had no other.
TEST_F(Resize, SingleRankWithTakenShardsDoesNotCountAsAJobOfOneShard) {
  begin(4, 2);
  cluster_->fetching = false;
  cluster_->restart_with(1, own_node);
  cluster_->advance(1000);
  for (NodeId node = 0; node < 4; ++node) {
    if (cluster_->find_slot(node, piece_of("rank1", CheckpointId(1, 3), 2)) != nullptr)
      cluster_->rot(node, "rank1", CheckpointId(1, 3));
  }
  cluster_->restart_with(1, own_node);
  cluster_->advance(8000);
  EXPECT_FALSE(cluster_->ready.contains(0));
  EXPECT_TRUE(cluster_->failed.contains(0));
}

TEST_F(Resize, RefusesAndKeepsTheCheckpointUnlessAllRanksCanTakeOverShards) {
  begin(4, 4);
  cluster_->end_trainers();
  cluster_->takes_no_shards = 1;
  restart_with(3);
  ASSERT_TRUE(cluster_->failed.contains(0));
  EXPECT_EQ(cluster_->failed.at(0).error, RestoreError::mismatch);
  EXPECT_THAT(cluster_->failed.at(0).text, HasSubstr("if all ranks use a Checkpointer"));
  cluster_->takes_no_shards.reset();
  restart_with(3);
  expect_all_taken(4, 3, CheckpointId(1, 3));
}

// ---- as many ranks, with other main shards ----

TEST_F(Resize, SameNumberOfRanksWithOtherMainShardsTakesOverAllShards) {
  begin(4, 4);
  cluster_->main_of = shared_by_two;
  restart_with(4);
  expect_all_taken(4, 4, CheckpointId(1, 3));
  EXPECT_THAT(taken_by(3), UnorderedElementsAre("rank3", "rank3.private"));
  cluster_->begin_training();
  train_until(6);
  restart_with(4);
  EXPECT_EQ(cluster_->ready.at(3).main.front().slot.shard, "rank2.and1") << "the next restart is an ordinary one";
  cluster_->main_of = main_shard;
  restart_with(4);
  EXPECT_THAT(taken_by(1), UnorderedElementsAre("rank2.and1", "rank1.private"));
  EXPECT_THAT(taken_by(3), UnorderedElementsAre("rank3.private"));
}

// They end before they have committed anything.
TEST_F(Resize, AnySplitRestoresACheckpointThatAnotherSplitTookOver) {
  begin(4, 4);
  cluster_->main_of = shared_by_two;
  restart_with(4);
  cluster_->begin_training();
  cluster_->main_of = [](Rank) { return std::string("all_ranks"); };
  for (const std::uint32_t ranks : {4u, 3u, 4u}) {
    restart_with(ranks);
    cluster_->begin_training();
    expect_all_taken(4, ranks, CheckpointId(1, 3));
  }
  cluster_->main_of = main_shard;
  restart_with(4);
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(cluster_->ready.at(rank).main.size(), 1u) << rank;
}

TEST_F(Resize, DistinguishesALostShardFromOneThatNeverExisted) {
  begin(4, 4);
  cluster_->fetching = false;
  for (NodeId node = 0; node < 4; ++node) {
    if (cluster_->find_slot(node, piece_of("rank3", CheckpointId(1, 3), 4)) != nullptr)
      cluster_->rot(node, "rank3", CheckpointId(1, 3));
  }
  for (const auto& main_of : {main_shard, shared_by_two}) {
    cluster_->main_of = main_of;
    restart_with(4);
    for (Rank rank = 0; rank < 4; ++rank) {
      EXPECT_FALSE(cluster_->ready.contains(rank)) << rank;
      EXPECT_EQ(cluster_->failed.at(rank).error, RestoreError::lost) << rank;
    }
  }
}

TEST_F(Resize, RefusesOtherMainShardsUnlessAllRanksCanTakeOverShards) {
  begin(4, 4);
  cluster_->main_of = shared_by_two;
  cluster_->takes_no_shards = 1;
  restart_with(4);
  EXPECT_FALSE(cluster_->ready.contains(0));
  EXPECT_TRUE(cluster_->failed.contains(0));
}

// Nobody knows then whether there were further main shards.
TEST_F(Resize, TakesNothingOverWithoutTheLastIncarnationsRecords) {
  begin(4, 4);
  cluster_->end_trainers();
  cluster_->lose_records();
  cluster_->restart_with(3, on_three);
  cluster_->advance(20000);
  EXPECT_FALSE(cluster_->ready.contains(0));
  ASSERT_TRUE(cluster_->failed.contains(0));
  EXPECT_EQ(cluster_->failed.at(0).error, RestoreError::mismatch);
  cluster_->main_of = shared_by_two;
  cluster_->restart_with(4, own_node);
  cluster_->advance(20000);
  EXPECT_FALSE(cluster_->ready.contains(0));
  EXPECT_TRUE(cluster_->failed.contains(0));
}

}  // namespace
}  // namespace ckpt::core
