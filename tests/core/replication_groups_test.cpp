#include "core/leader/replication_groups.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

using placement::Protection;
using placement::Strategy;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Rank r sits on node r / ranks_per_node, or on node r % nodes.
std::vector<RankAssignment> assignments(NodeId nodes, Rank ranks_per_node, bool round_robin = false) {
  std::vector<RankAssignment> list;
  for (Rank rank = 0; rank < nodes * ranks_per_node; ++rank) {
    const NodeId node = round_robin ? rank % nodes : rank / ranks_per_node;
    list.push_back({rank, node, 0, "", main_shard(rank), private_shard(rank), 1, true});
  }
  return list;
}

std::map<Rank, ReplicationGroup> grouped(const std::vector<RankAssignment>& assignments,
                                         std::optional<Strategy> strategy, const Protection& protection) {
  return replication_groups(assignments, arrange(assignments, strategy, protection), protection);
}
std::map<Rank, ReplicationGroup> grouped(const std::vector<RankAssignment>& assignments, std::uint32_t copies) {
  return grouped(assignments, {}, Protection::of_copies(copies));
}

std::vector<Rank> ranks_of(const ReplicationGroup& group) {
  std::vector<Rank> ranks;
  for (const ReplicationMember& member : group.members) ranks.push_back(member.rank);
  return ranks;
}

TEST(ReplicationGroups, HoldTheRanksOfOnePositionOnTheGroupsNodes) {
  const auto groups = grouped(assignments(4, 2), 2);
  EXPECT_THAT(ranks_of(groups.at(0)), ElementsAre(0, 2));
  EXPECT_THAT(ranks_of(groups.at(1)), ElementsAre(1, 3));
  EXPECT_THAT(ranks_of(groups.at(7)), ElementsAre(5, 7));
  EXPECT_EQ(groups.at(7).member, 1u);
  EXPECT_EQ(groups.at(7).members[0], (ReplicationMember{2, 5, main_shard(5)}));
  EXPECT_EQ(groups.at(7).refusal, "");
}

// For everything that a rank of one member captures, the others' nodes are exactly who must get it, from nobody else.
TEST(ReplicationGroups, HoldExactlyTheirOwnPiecesInEveryPlacement) {
  std::vector<std::optional<Strategy>> strategies(std::begin(placement::all_strategies),
                                                  std::end(placement::all_strategies));
  strategies.emplace_back(std::nullopt);
  std::size_t found = 0, refused = 0;
  for (const auto strategy : strategies)
    for (NodeId nodes = 1; nodes <= 13; ++nodes)
      for (const std::uint32_t copies : {1u, 2u, 3u, 4u, 13u})
        for (const Rank ranks_per_node : {1u, 3u})
          for (const bool round_robin : {false, true}) {
            const auto all = assignments(nodes, ranks_per_node, round_robin);
            const Protection protection = Protection::of_copies(copies);
            const JobPlacement placement_of_job = arrange(all, strategy, protection);
            const auto groups = replication_groups(all, placement_of_job, protection);
            ASSERT_THAT(groups, SizeIs(all.size()));
            for (const auto& [rank, group] : groups) {
              ++(group.members.empty() ? refused : found);
              ASSERT_NE(group.members.empty(), group.refusal.empty());
              if (group.members.empty()) continue;
              ASSERT_LT(group.member, group.members.size());
              ASSERT_EQ(group.members[group.member].rank, rank);
              std::set<NodeId> members;
              for (const ReplicationMember& member : group.members) members.insert(member.node);
              ASSERT_EQ(members.size(), group.members.size());
              for (const ReplicationMember& member : group.members) {
                const Place& place = placement_of_job.places.at(member.shard);
                ASSERT_EQ(std::set<NodeId>(place.holders.begin(), place.holders.end()), members);
                ASSERT_THAT(place.capturers, ElementsAre(member.node));
                ASSERT_EQ(groups.at(member.rank).members, group.members);
              }
            }
          }
  EXPECT_GT(found, 1000u);
  EXPECT_GT(refused, 1000u);
}

TEST(ReplicationGroups, RefuseALastGroupOfAnotherSize) {
  const auto groups = grouped(assignments(5, 1), 2);
  EXPECT_THAT(ranks_of(groups.at(1)), ElementsAre(0, 1));
  for (const Rank rank : {2u, 3u, 4u})
    EXPECT_THAT(groups.at(rank).refusal, HasSubstr("are on nodes outside its group")) << rank;
}

TEST(ReplicationGroups, AreRefusedInARing) {
  for (const auto& [rank, group] : grouped(assignments(6, 1), Strategy::ring, Protection::of_copies(2)))
    EXPECT_THAT(group.refusal, HasSubstr("are on nodes outside its group")) << rank;
}

TEST(ReplicationGroups, AreRefusedForSharedMainShards) {
  auto all = assignments(4, 2);
  all[0].main_shard = all[5].main_shard = "model";
  const auto groups = grouped(all, 2);
  EXPECT_THAT(groups.at(0).refusal, HasSubstr("several ranks have its main shard"));
  EXPECT_THAT(groups.at(2).refusal, HasSubstr("rank 0, which belongs to its group, shares"));
  EXPECT_THAT(ranks_of(groups.at(1)), ElementsAre(1, 3));
}

// For all sizes: a rank's GPU makes exactly the parity that its node holds of its main shard's group.
TEST(ReplicationGroups, HoldTheRanksWhoseShardsAreEncodedTogether) {
  std::size_t found = 0;
  for (const Protection& protection : {Protection{1, 2, 1}, {1, 3, 1}, {1, 4, 2}, {1, 8, 3}})
    for (NodeId nodes = 2; nodes <= 11; ++nodes)
      for (const Rank ranks_per_node : {1u, 3u}) {
        const auto all = assignments(nodes, ranks_per_node);
        const JobPlacement placement_of_job = arrange(all, {}, protection);
        for (const auto& [rank, group] : replication_groups(all, placement_of_job, protection)) {
          ASSERT_EQ(group.refusal, "");
          ASSERT_EQ(group.members.at(group.member).rank, rank);
          std::vector<std::string> shards;
          for (const ReplicationMember& member : group.members) shards.push_back(member.shard);
          const Place& place = placement_of_job.places.at(parity_name(group.rows, shards, group.member));
          ASSERT_THAT(place.holders, ElementsAre(all[rank].node));
          ASSERT_EQ(place.parity->rows, group.rows);
          ++found;
        }
      }
  EXPECT_GT(found, 1000u);
}

TEST(ReplicationGroups, AreRefusedWithParityIfANodeHasNoShard) {
  auto all = assignments(3, 2);
  all.pop_back();
  const auto groups = grouped(all, {}, {1, 3, 1});
  EXPECT_THAT(ranks_of(groups.at(0)), ElementsAre(0, 2, 4));
  for (const Rank rank : {1u, 3u}) EXPECT_THAT(groups.at(rank).refusal, HasSubstr("same number of ranks"));
}

TEST(ReplicationGroups, AreRefusedWithParityForSharingOrUninterestedRanks) {
  auto all = assignments(3, 2);
  all[0].main_shard = all[3].main_shard = "model";
  all[4].wants_gpu_replication = false;
  const auto groups = grouped(all, {}, {1, 3, 1});
  EXPECT_THAT(groups.at(0).refusal, HasSubstr("several ranks have its main shard"));
  for (const auto& [rank, group] : groups) EXPECT_NE(group.refusal, "") << rank;
}

TEST(ReplicationGroups, AreRefusedWithParityAndCopiesOrWithoutCopies) {
  for (const auto& [rank, group] : grouped(assignments(4, 1), {}, {2, 4, 1}))
    EXPECT_THAT(group.refusal, HasSubstr("copies besides parity"));
  for (const auto& [rank, group] : grouped(assignments(4, 1), 1))
    EXPECT_THAT(group.refusal, HasSubstr("no other node"));
}

TEST(ReplicationGroups, AreRefusedIfNodesHaveDifferentNumbersOfRanks) {
  auto all = assignments(4, 2);
  all.pop_back();
  const auto groups = grouped(all, 2);
  EXPECT_THAT(ranks_of(groups.at(0)), ElementsAre(0, 2));
  for (const Rank rank : {4u, 5u, 6u}) EXPECT_THAT(groups.at(rank).refusal, HasSubstr("another number of ranks"));
}

TEST(ReplicationGroups, AreNoLargerThanTheReceiveBuffersPlaces) {
  EXPECT_THAT(grouped(assignments(32, 1), 32).at(31).members, SizeIs(32));
  EXPECT_THAT(grouped(assignments(33, 1), 33).at(31).refusal, HasSubstr("more than 32"));
}

TEST(ReplicationGroups, NameTheRankThatDoesNotTakePartToTheOthers) {
  auto all = assignments(4, 1);
  all[2].wants_gpu_replication = false;
  const auto groups = grouped(all, 2);
  EXPECT_FALSE(groups.contains(2));
  EXPECT_THAT(groups.at(3).refusal, HasSubstr("rank 2, which belongs to its group, does not take part"));
  EXPECT_THAT(ranks_of(groups.at(0)), ElementsAre(0, 1));
  for (RankAssignment& assignment : all) assignment.wants_gpu_replication = false;
  EXPECT_THAT(grouped(all, 2), IsEmpty());
}

class ReplicationUpdate : public ::testing::Test {
 protected:
  ReplicationUpdate() { cluster_.wants_gpu_replication = true; }
  void begin() {
    cluster_.start_incarnation(own_node);
    cluster_.advance(100);
    cluster_.begin_training();
  }
  Cluster cluster_{4, 4};
};

TEST_F(ReplicationUpdate, EachRankLearnsItsGroupOncePerIncarnation) {
  begin();
  cluster_.advance(5000);
  for (Rank rank = 0; rank < 4; ++rank) {
    ASSERT_TRUE(cluster_.ready.contains(rank));
    EXPECT_FALSE(cluster_.was_ready_before_replication);
    ASSERT_THAT(cluster_.replications[rank], SizeIs(1));
    const NotifyReplicationGroup& update = cluster_.replications[rank].front();
    EXPECT_EQ(update.incarnation, cluster_.ready.at(rank).incarnation);
    EXPECT_THAT(ranks_of(update.replication), ElementsAre(rank / 2 * 2, rank / 2 * 2 + 1));
  }
}

TEST_F(ReplicationUpdate, RanksThatDoNotAskLearnNothing) {
  cluster_.wants_gpu_replication = false;
  begin();
  EXPECT_TRUE(cluster_.ready.contains(0));
  for (Rank rank = 0; rank < 4; ++rank) EXPECT_THAT(cluster_.replications[rank], IsEmpty());
}

// Whatever their trainers say to them, the group is that of the incarnation's rank assignments.
TEST_F(ReplicationUpdate, RestartedAgentsLearnTheSameGroups) {
  begin();
  const auto before = cluster_.replications;
  cluster_.restart_agents();
  for (Rank rank = 0; rank < 4; ++rank) cluster_.come_back(rank);
  cluster_.advance(5000);
  for (Rank rank = 0; rank < 4; ++rank) {
    ASSERT_THAT(cluster_.replications[rank], SizeIs(2));
    EXPECT_EQ(cluster_.replications[rank].back().replication, before.at(rank).front().replication);
    EXPECT_EQ(cluster_.replications[rank].back().incarnation, before.at(rank).front().incarnation);
  }
}

TEST_F(ReplicationUpdate, NextIncarnationsGroupsFollowItsOwnAssignments) {
  begin();
  const auto first = cluster_.replications.at(0).front();
  cluster_.start_incarnation([](Rank rank) { return (rank + 3) % 4; });
  cluster_.advance(100);
  ASSERT_THAT(cluster_.replications[0], SizeIs(2));
  EXPECT_GT(cluster_.replications[0].back().incarnation, first.incarnation);
  EXPECT_EQ(cluster_.replications[0].back().replication.members[1].node, 0u);
}

}  // namespace
}  // namespace ckpt::core
