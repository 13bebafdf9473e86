// From where nodes get a piece that more nodes restore than have it.
#include "core/leader/restore_chain.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cluster.hpp"
#include "core/leader/leader.hpp"
#include "core/leader/restore_decision.hpp"

namespace ckpt::core {
namespace {

Holders held_by(const std::vector<NodeId>& nodes) {
  Holders holders;
  for (const NodeId node : nodes) holders.push_back({node, nullptr});
  return holders;
}

std::map<NodeId, NodeId> first_sources(const std::vector<NodeId>& fetching, const std::vector<NodeId>& holding) {
  std::map<NodeId, NodeId> first;
  for (const NodeId node : fetching) first[node] = sources_in_chain(node, fetching, held_by(holding)).front();
  return first;
}

TEST(RestoreChain, EachNodeFetchesFromTheOneBeforeIt) {
  EXPECT_EQ(first_sources({1, 2, 4}, {3}), (std::map<NodeId, NodeId>{{1, 3}, {2, 1}, {4, 2}}));
}

TEST(RestoreChain, NoNodeIsTheFirstSourceOfTwoOthers) {
  for (const std::vector<NodeId>& holding : {std::vector<NodeId>{0}, {3, 20}, {0, 9, 13}}) {
    std::set<NodeId> used;
    for (const auto& [node, source] : first_sources({1, 2, 4, 5, 6, 8, 11}, holding))
      EXPECT_TRUE(used.insert(source).second) << source << " for " << node << " and another one";
    for (const NodeId holder : holding) EXPECT_TRUE(used.contains(holder)) << "every holder sends its chain";
  }
}

TEST(RestoreChain, ANodeWaitsOnlyForNodesWithLowerIds) {
  const std::vector<NodeId> holding{3, 20};
  for (const auto& [node, source] : first_sources({1, 2, 4, 5, 6, 8, 11}, holding))
    EXPECT_TRUE(source < node || source == 3 || source == 20) << source << " for " << node;
}

TEST(RestoreChain, NodesThatHaveThePieceComeNextIfTheOneBeforeFails) {
  EXPECT_EQ(sources_in_chain(5, {1, 2, 5}, held_by({3, 7})), (std::vector<NodeId>{7, 3}));
  EXPECT_EQ(sources_in_chain(2, {1, 2, 5}, held_by({3, 7})), (std::vector<NodeId>{1, 3, 7}));
  EXPECT_EQ(sources_in_chain(9, {1, 2, 3, 4, 5, 6, 8, 9}, held_by({10, 11, 12, 13, 14})).size(), sources_max);
}

TEST(RestoreChain, EachNodeHasASourceOfItsOwnIfEnoughNodesHaveThePiece) {
  EXPECT_EQ(first_sources({1, 2}, {0, 3}), (std::map<NodeId, NodeId>{{1, 0}, {2, 3}}));
  EXPECT_EQ(first_sources({1, 2}, {0, 3, 4}), (std::map<NodeId, NodeId>{{1, 0}, {2, 3}}));
}

TEST(RestoreChain, ASingleNodeIsNone) { EXPECT_TRUE(sources_in_chain(1, {1}, held_by({0, 3})).empty()); }

// Four nodes with a rank each, all of which hold all shards. They restore what node 0 alone has kept.
class LoneSurvivor : public ::testing::Test {
 protected:
  const CheckpointId restored{1, 5};

  LoneSurvivor() : leader_(Config{}, 2, {}, 0) {
    std::vector<RankAssignment> assignments;
    for (Rank rank = 0; rank < 4; ++rank)
      assignments.push_back({rank, rank, 100 + rank, "", main_shard(rank), private_shard(rank)});
    IncarnationRecord incarnation_record;
    incarnation_record.epoch = 2;
    incarnation_record.incarnation = 2;
    incarnation_record.world_size = 4;
    incarnation_record.restored_ranks = 4;
    incarnation_record.protection = placement::Protection::of_copies(4);
    incarnation_record.restored = restored;
    incarnation_record.decision.verdict = Verdict::restore;
    incarnation_record.decision.checkpoint = restored;
    incarnation_record.assignments = name_of(2, assignments);
    leader_.on(IncarnationRecordRead{1, incarnation_record});
    leader_.on(AssignmentsRead{incarnation_record.assignments, assignments});
  }
  void receive(NodeId node) {
    Report report;
    report.node = node;
    report.arena_id = 100 + node;
    report.agent_id = report.sequence = 1;
    report.epoch = 2;
    if (node == 0) {
      for (Rank rank = 0; rank < 4; ++rank) {
        for (const auto& shard : {main_shard(rank), private_shard(rank)})
          report.pieces.push_back(piece_of(shard, restored, 4));
      }
    }
    RankReport trainer{node, 50 + node, 2, 4, main_shard(node), private_shard(node)};
    trainer.waiting = true;
    report.ranks.push_back(trainer);
    leader_.on(node, report, ++now_);
  }
  // The first sources of all pieces that the node is told to fetch.
  std::map<NodeId, std::set<NodeId>> first_sources() {
    Effects effects;
    leader_.reconcile(++now_, effects);
    std::map<NodeId, std::set<NodeId>> first;
    for (const Effect& effect : effects) {
      const auto* send = std::get_if<Send>(&effect);
      if (send == nullptr || !std::holds_alternative<Directive>(send->message)) continue;
      for (const FetchOrder& order : std::get<Directive>(send->message).fetches)
        first[send->to].insert(order.sources.front());
    }
    return first;
  }

 private:
  Leader leader_;
  TimeMs now_ = 10;
};

TEST_F(LoneSurvivor, SendsEachPieceToOneNodeWhichSendsItOn) {
  for (const NodeId node : {0, 1, 2, 3}) receive(node);
  EXPECT_EQ(first_sources(), (std::map<NodeId, std::set<NodeId>>{{1, {0}}, {2, {1}}, {3, {2}}}));
}

TEST_F(LoneSurvivor, LeavesNodesOutThatDoNotAnswer) {
  for (const NodeId node : {0, 1, 3}) receive(node);
  EXPECT_EQ(first_sources(), (std::map<NodeId, std::set<NodeId>>{{1, {0}}, {3, {1}}}));
}

}  // namespace
}  // namespace ckpt::core
