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

class Resize : public ::testing::Test {
 protected:
  void begin(std::uint32_t nodes, std::uint32_t ranks) {
    cluster.emplace(nodes, ranks);
    cluster->takes_shards = true;
    cluster->start_incarnation(own_node);
    cluster->begin_training();
    train_until(3);
  }
  void train_until(std::int64_t last) {
    for (std::int64_t k = last - 2; k <= last; ++k) {
      cluster->snapshot_all(k);
      cluster->advance(500);
    }
    ASSERT_EQ(cluster->commits.at(0), CheckpointId(cluster->incarnation(), last));
  }
  void restart_with(std::uint32_t ranks, const std::function<NodeId(Rank)>& node_of = own_node) {
    cluster->restart_with(ranks, node_of);
    cluster->advance(8000);
  }
  // All pieces that the rank restores.
  std::vector<std::string> taken_by(Rank rank) const {
    const auto found = cluster->ready.find(rank);
    if (found == cluster->ready.end()) return {};
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
      ASSERT_TRUE(cluster->ready.contains(rank)) << rank;
      EXPECT_EQ(cluster->ready.at(rank).decision.checkpoint, checkpoint);
      EXPECT_EQ(cluster->ready.at(rank).private_.slot.shard, private_shard(rank < before ? rank : 0));
      for (const std::string& shard : taken_by(rank)) all.insert(shard);
    }
    EXPECT_EQ(all, wanted);
  }

  std::optional<Cluster> cluster;
};

TEST_F(Resize, EachRankTakesOverEveryNthShard) {
  begin(4, 4);
  restart_with(3);
  expect_all_taken(4, 3, CheckpointId(1, 3));
  EXPECT_THAT(taken_by(0), UnorderedElementsAre("rank0", "rank0.private", "rank3", "rank3.private"));
  EXPECT_THAT(taken_by(1), UnorderedElementsAre("rank1", "rank1.private"));
  cluster->begin_training();
  train_until(6);
  for (NodeId node = 0; node < 4; ++node) {
    for (const PieceInfo& piece : cluster->status(node).pieces)
      EXPECT_GE(piece.checkpoint, CheckpointId(2, 6)) << piece.shard << " on node " << node;
  }
  restart_with(3);
  EXPECT_EQ(cluster->ready.at(2).main.size(), 1u) << "the next restart is an ordinary one";
}

TEST_F(Resize, RanksBeyondTheEarlierOnesTakeRank0sPrivateShard) {
  begin(4, 2);
  restart_with(4);
  expect_all_taken(2, 4, CheckpointId(1, 3));
  EXPECT_THAT(taken_by(3), UnorderedElementsAre("rank0.private"));
  cluster->begin_training();
  train_until(6);
}

TEST_F(Resize, ANodeMayBeLostWithItsRanks) {
  for (const NodeId lost : {0u, 3u}) {
    begin(4, 4);
    cluster->end_trainers();
    cluster->lose(lost);
    restart_with(3, [&](Rank rank) { return rank < lost ? rank : rank + 1; });
    expect_all_taken(4, 3, CheckpointId(1, 3));
  }
}

// They end before they have committed anything.
TEST_F(Resize, AnyNumberOfRanksGoesOnFromACheckpointThatOthersHaveTakenOver) {
  begin(4, 4);
  for (const std::uint32_t ranks : {3u, 2u, 3u}) {
    restart_with(ranks);
    cluster->begin_training();
    expect_all_taken(4, ranks, CheckpointId(1, 3));
  }
  restart_with(4);
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(cluster->ready.at(rank).main.size(), 1u) << rank;
}

TEST_F(Resize, CopiesThatWereLostAreMadeAgainBeforeTheFirstCommit) {
  begin(4, 4);
  restart_with(3);
  cluster->begin_training();
  cluster->end_trainers();
  cluster->boot(0);
  restart_with(3);
  expect_all_taken(4, 3, CheckpointId(1, 3));
}

TEST_F(Resize, ARestartedAgentAndANewLeaderKnowWhoTakesWhat) {
  begin(4, 4);
  cluster->fetching = false;
  cluster->restart_with(3, on_three);
  cluster->advance(1000);
  cluster->change_leader();
  cluster->release_fetches();
  cluster->advance(2000);
  expect_all_taken(4, 3, CheckpointId(1, 3));
}

TEST_F(Resize, AShardOfWhichNothingIsLeftIsNeverLeftOut) {
  begin(4, 4);
  cluster->fetching = false;  // or a node would fetch it again before the next one loses it
  for (NodeId node = 0; node < 4; ++node) {
    if (cluster->find_slot(node, piece_of("rank3", CheckpointId(1, 3), 4)) != nullptr)
      cluster->rot(node, "rank3", CheckpointId(1, 3));
  }
  cluster->restart_with(3, on_three);
  cluster->advance(8000);
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(cluster->ready.contains(rank)) << rank;
    EXPECT_TRUE(cluster->failed.contains(rank)) << rank;
  }
}

// A rank may take over no more shards than fit into the record of its assignment.
TEST_F(Resize, OneRankTakesOverAsManyShardsAsARecordHolds) {
  for (const std::uint32_t ranks : {40u, 80u}) {
    begin(ranks, ranks);
    restart_with(1);
    EXPECT_EQ(cluster->ready.contains(0), 2 * ranks <= taken_shards_max) << ranks;
    EXPECT_EQ(cluster->failed.contains(0), 2 * ranks > taken_shards_max) << ranks;
  }
}

// A job of one rank names one main shard. That does not prove that the checkpoint it took over had no other.
TEST_F(Resize, ASingleRankThatTookOverShardsNeverPassesForAJobWithOneMainShard) {
  begin(4, 2);
  cluster->fetching = false;
  cluster->restart_with(1, own_node);
  cluster->advance(1000);
  for (NodeId node = 0; node < 4; ++node) {
    if (cluster->find_slot(node, piece_of("rank1", CheckpointId(1, 3), 2)) != nullptr)
      cluster->rot(node, "rank1", CheckpointId(1, 3));
  }
  cluster->restart_with(1, own_node);
  cluster->advance(8000);
  EXPECT_FALSE(cluster->ready.contains(0));
  EXPECT_TRUE(cluster->failed.contains(0));
}

TEST_F(Resize, UnlessAllRanksCanTakeOverShardsTheCheckpointIsRefusedAndKept) {
  begin(4, 4);
  cluster->end_trainers();
  cluster->takes_no_shards = 1;
  restart_with(3);
  ASSERT_TRUE(cluster->failed.contains(0));
  EXPECT_EQ(cluster->failed.at(0).error, RestoreError::mismatch);
  EXPECT_THAT(cluster->failed.at(0).text, HasSubstr("if all ranks use a Checkpointer"));
  cluster->takes_no_shards.reset();
  restart_with(3);
  expect_all_taken(4, 3, CheckpointId(1, 3));
}

// Nobody knows then whether there were further main shards.
TEST_F(Resize, WithoutTheRecordsOfTheLastIncarnationNothingIsTakenOver) {
  begin(4, 4);
  cluster->end_trainers();
  cluster->lose_records();
  cluster->restart_with(3, on_three);
  cluster->advance(20000);
  EXPECT_FALSE(cluster->ready.contains(0));
  ASSERT_TRUE(cluster->failed.contains(0));
  EXPECT_EQ(cluster->failed.at(0).error, RestoreError::mismatch);
}

}  // namespace
}  // namespace ckpt::core
