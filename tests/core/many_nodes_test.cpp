// With many nodes, or many pieces, the leader draws its conclusions for several reports at once and tells a little at a
// time.
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core {
namespace {

// A leader that hears what a test says, and whose records are written at once.
class LoneManyNodesLeader {
 public:
  LoneManyNodesLeader() : node_(Config{}, 1, Recovered{}) {
    handle(LeaderRecordRead{}, 0);
    handle(IncarnationRecordRead{}, 0);
  }

  // How many directives came of it.
  int handle(const Event& event, TimeMs now) {
    int sent = 0;
    for (const Effect& effect : node_.handle(event, now)) {
      sent += std::holds_alternative<Send>(effect) ? 1 : 0;
      if (const auto* swap = std::get_if<SwapLeaderRecord>(&effect))
        handle(LeaderRecordRead{++revision_, swap->record}, now);
      if (const auto* swap = std::get_if<SwapIncarnationRecord>(&effect))
        handle(IncarnationRecordRead{++revision_, swap->record}, now);
    }
    return sent;
  }
  int report_of(NodeId node, std::uint64_t sequence, TimeMs now, int pieces = 0) {
    Report report;
    report.node = node;
    report.agent_id = 1;
    report.sequence = sequence;
    report.epoch = node_.status().epoch;
    for (int i = 0; i < pieces; ++i)
      report.pieces.push_back(piece_of("shard" + std::to_string(i), CheckpointId(1, 1), 1));
    return handle(MessageArrived{node, report}, now);
  }
  const Node& node() const { return node_; }

 private:
  Node node_;
  std::uint64_t revision_ = 0;
};

TEST(ManyNodes, FewNodesAreAnsweredImmediately) {
  LoneManyNodesLeader leader;
  for (NodeId node = 1; node <= 60; ++node) EXPECT_EQ(leader.report_of(node, 1, 10), 1);
  EXPECT_EQ(leader.node().tick_wanted_at(), std::nullopt);
}

TEST(ManyNodes, ReportsWithinAShortTimeAreAnsweredTogether) {
  LoneManyNodesLeader leader;
  for (NodeId node = 1; node <= 640; ++node) leader.report_of(node, 1, 10);
  leader.handle(Tick{}, 100);
  EXPECT_EQ(leader.node().tick_wanted_at(), std::nullopt);
  int answers = 0;
  for (NodeId node = 1; node <= 640; ++node) answers += leader.report_of(node, 2, 100);
  EXPECT_EQ(answers, 0);
  ASSERT_EQ(leader.node().tick_wanted_at(), 102);  // 2 ms for so many
  EXPECT_EQ(leader.handle(Tick{}, 101), 0);
  EXPECT_EQ(leader.handle(Tick{}, 102), 640);
  EXPECT_EQ(leader.node().tick_wanted_at(), std::nullopt);
}

TEST(ManyNodes, FewNodesWithManyPiecesAreAnsweredTogether) {
  LoneManyNodesLeader leader;
  for (NodeId node = 1; node <= 8; ++node) leader.report_of(node, 1, 10, 320);
  leader.handle(Tick{}, 100);
  int answers = 0;
  for (NodeId node = 1; node <= 8; ++node) answers += leader.report_of(node, 2, 100, 320);
  EXPECT_EQ(answers, 0);
  ASSERT_EQ(leader.node().tick_wanted_at(), 110);
  EXPECT_EQ(leader.handle(Tick{}, 110), 8);
}

TEST(ManyNodes, DroppedPiecesDoNotCount) {
  LoneManyNodesLeader leader;
  leader.report_of(1, 1, 10, 2560);
  EXPECT_EQ(leader.report_of(1, 2, 100, 0), 1);
  EXPECT_EQ(leader.report_of(1, 3, 100, 0), 1);
}

TEST(ManyNodes, NoWaitIsLongerThanASecond) {
  LoneManyNodesLeader leader;
  for (NodeId node = 1; node <= 10'000; ++node) leader.report_of(node, 1, 10, 30);
  leader.handle(Tick{}, 2000);
  leader.report_of(1, 2, 2000);
  EXPECT_EQ(leader.node().tick_wanted_at(), 3000);
}

TEST(ManyNodes, CommitAndRestoreLikeFewNodes) {
  constexpr Rank ranks = 80;
  Cluster cluster(ranks, ranks);
  const auto restart = [&] {
    cluster.ready.clear();
    cluster.start_incarnation(own_node);
    cluster.advance(500);
    ASSERT_EQ(cluster.ready.size(), ranks);
    cluster.begin_training();
    cluster.advance(200);
  };
  cluster.advance(500);
  restart();
  EXPECT_EQ(cluster.ready.at(0).decision.verdict, Verdict::fresh);
  cluster.snapshot_all(1);
  cluster.advance(500);
  for (Rank rank = 0; rank < ranks; ++rank) EXPECT_EQ(cluster.commits[rank], CheckpointId(1, 1));
  cluster.lose(7);
  cluster.boot(7);
  cluster.advance(500);
  restart();
  EXPECT_EQ(cluster.ready.at(7).decision.checkpoint, CheckpointId(1, 1));
}

// Who restores needs all parts of what it shares with many, and most of them have all parts before long.
TEST(ManyNodes, DirectivesForASharedShardHoldFewOrdersWithFewSources) {
  constexpr Rank ranks = 80;
  Cluster cluster(ranks, ranks);
  cluster.main_of = [](Rank) { return "model"; };
  std::size_t most_orders = 0, most_sources = 0;
  cluster.on_directive = [&](const Directive& directive) {
    most_orders = std::max(most_orders, directive.fetches.size());
    for (const FetchOrder& order : directive.fetches) most_sources = std::max(most_sources, order.sources.size());
  };
  const auto restart = [&] {
    cluster.ready.clear();
    cluster.start_incarnation(own_node);
    cluster.advance(5000);
    ASSERT_EQ(cluster.ready.size(), ranks);
    cluster.begin_training();
    cluster.advance(500);
  };
  cluster.advance(500);
  restart();
  cluster.snapshot_all(1);
  cluster.advance(500);
  restart();
  EXPECT_EQ(cluster.ready.at(7).main.size(), ranks);
  EXPECT_EQ(most_orders, 64u);
  EXPECT_EQ(most_sources, 4u);
}

}  // namespace
}  // namespace ckpt::core
