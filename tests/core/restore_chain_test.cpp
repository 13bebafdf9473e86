// From where nodes get a piece that more nodes restore than have it.
#include "core/leader/restore_chain.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "cluster.hpp"
#include "core/chain_order.hpp"
#include "core/leader/leader.hpp"
#include "core/leader/restore_decision.hpp"

namespace ckpt::core {
namespace {

Holders held_by(const std::vector<NodeId>& nodes) {
  Holders holders;
  for (const NodeId node : nodes) holders.push_back({node, nullptr});
  return holders;
}

std::map<NodeId, NodeId> first_sources(const std::vector<NodeId>& fetching, const std::vector<NodeId>& holding,
                                       NodeId chain_from = 0) {
  std::map<NodeId, NodeId> first;
  for (const NodeId node : fetching)
    first[node] = sources_in_chain(node, chain_from, fetching, held_by(holding)).front();
  return first;
}

TEST(RestoreChain, EachNodeFetchesFromTheOneBeforeIt) {
  EXPECT_EQ(first_sources({1, 2, 4}, {3}), (std::map<NodeId, NodeId>{{1, 3}, {2, 1}, {4, 2}}));
}

TEST(RestoreChain, NoNodeIsTheFirstSourceOfTwoNodes) {
  for (const std::vector<NodeId>& holding : {std::vector<NodeId>{0}, {3, 20}, {0, 9, 13}}) {
    std::set<NodeId> used;
    for (const auto& [node, source] : first_sources({1, 2, 4, 5, 6, 8, 11}, holding))
      EXPECT_TRUE(used.insert(source).second) << source << " for " << node << " and another one";
    for (const NodeId holder : holding) EXPECT_TRUE(used.contains(holder)) << "every holder sends its chain";
  }
}

TEST(RestoreChain, LowestIdFollowsTheHighest) {
  EXPECT_EQ(first_sources({1, 2, 4}, {3}, 3), (std::map<NodeId, NodeId>{{4, 3}, {1, 4}, {2, 1}}));
}

TEST(RestoreChain, NodeGetsAllOtherPartsFromTheNodeBeforeIt) {
  const std::vector<NodeId> nodes{1, 2, 4, 5, 7};
  for (const NodeId holder : nodes) {
    std::vector<NodeId> fetching = nodes;
    std::erase(fetching, holder);
    for (const auto& [node, source] : first_sources(fetching, {holder}, holder)) {
      const auto at = std::find(nodes.begin(), nodes.end(), node);
      EXPECT_EQ(source, at == nodes.begin() ? nodes.back() : *(at - 1)) << "the part of " << holder << " for " << node;
    }
  }
}

TEST(RestoreChain, NodeWaitsOnlyForNodesBeforeItOnTheRing) {
  const std::vector<NodeId> holding{3, 20};
  for (const NodeId chain_from : {0u, 3u, 6u, 20u}) {
    for (const auto& [node, source] : first_sources({1, 2, 4, 5, 6, 8, 11}, holding, chain_from))
      EXPECT_TRUE(comes_after(node, source, chain_from) || source == 3 || source == 20) << source << " for " << node;
  }
}

// A node waits for another one only if both have the same chain, and it comes after the other one. Each node has a
// chain of its own here, as if each followed another plan.
TEST(RestoreChain, NodesNeverWaitForEachOtherInACircle) {
  constexpr NodeId nodes = 5;
  for (std::uint32_t plans = 0; plans < 5 * 5 * 5 * 5 * 5; ++plans) {
    std::array<NodeId, nodes> chain_from{};
    for (std::uint32_t node = 0, rest = plans; node < nodes; ++node, rest /= 5) chain_from[node] = rest % 5;
    const auto may_wait = [&](NodeId node, NodeId other) {
      return chain_from[node] == chain_from[other] && comes_after(node, other, chain_from[other]);
    };
    std::array<std::uint32_t, nodes> awaited{};  // directly or not, as bits
    for (NodeId round = 0; round < nodes; ++round) {
      for (NodeId node = 0; node < nodes; ++node) {
        for (NodeId other = 0; other < nodes; ++other)
          if (may_wait(node, other)) awaited[node] |= 1u << other | awaited[other];
      }
    }
    for (NodeId node = 0; node < nodes; ++node) ASSERT_FALSE(awaited[node] >> node & 1) << node << " with " << plans;
  }
}

TEST(RestoreChain, FallsBackToHoldersIfThePreviousNodeFails) {
  EXPECT_EQ(sources_in_chain(5, 0, {1, 2, 5}, held_by({3, 7})), (std::vector<NodeId>{7, 3}));
  EXPECT_EQ(sources_in_chain(2, 0, {1, 2, 5}, held_by({3, 7})), (std::vector<NodeId>{1, 3, 7}));
  EXPECT_EQ(sources_in_chain(9, 0, {1, 2, 3, 4, 5, 6, 8, 9}, held_by({10, 11, 12, 13, 14})).size(), sources_max);
}

TEST(RestoreChain, EachNodeHasItsOwnSourceIfEnoughNodesHaveThePiece) {
  EXPECT_EQ(first_sources({1, 2}, {0, 3}), (std::map<NodeId, NodeId>{{1, 0}, {2, 3}}));
  EXPECT_EQ(first_sources({1, 2}, {0, 3, 4}), (std::map<NodeId, NodeId>{{1, 0}, {2, 3}}));
}

TEST(RestoreChain, SingleNodeFormsNoChain) { EXPECT_TRUE(sources_in_chain(1, 0, {1}, held_by({0, 3})).empty()); }

TEST(RestoreChain, BeginsAtANodeThatCapturedThePieceIfOneHasIt) {
  const Place place{.owners = {1, 2, 3}, .capturers = {6, 2}, .holders = {2, 5}};
  EXPECT_EQ(begin_of_chain(place, held_by({1, 2, 5})), 2u);
  EXPECT_EQ(begin_of_chain(place, held_by({1, 5})), 5u);
  EXPECT_EQ(begin_of_chain(place, held_by({1, 3})), 1u);
}

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

TEST_F(LoneSurvivor, SendsEachPieceToOneNodeWhichPassesItOn) {
  for (const NodeId node : {0, 1, 2, 3}) receive(node);
  EXPECT_EQ(first_sources(), (std::map<NodeId, std::set<NodeId>>{{1, {0}}, {2, {1}}, {3, {2}}}));
}

TEST_F(LoneSurvivor, ExcludesNodesThatDoNotAnswer) {
  for (const NodeId node : {0, 1, 3}) receive(node);
  EXPECT_EQ(first_sources(), (std::map<NodeId, std::set<NodeId>>{{1, {0}}, {3, {1}}}));
}

}  // namespace
}  // namespace ckpt::core
