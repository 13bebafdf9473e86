// With many nodes the root draws its conclusions for several reports at once.
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::protocol {
namespace {

// A root that hears what a test says, and whose records are written at once.
class LoneRoot {
 public:
  LoneRoot() : node_(Config{}, 1, Recovered{}) {
    handle(RootRead{}, 0);
    handle(LifeRead{}, 0);
  }

  // How many directives came of it.
  int handle(const Event& event, TimeMs now) {
    int sent = 0;
    for (const Effect& effect : node_.handle(event, now)) {
      sent += std::holds_alternative<Send>(effect) ? 1 : 0;
      if (const auto* swap = std::get_if<SwapRoot>(&effect)) handle(RootRead{++revision_, swap->record}, now);
      if (const auto* swap = std::get_if<SwapLife>(&effect)) handle(LifeRead{++revision_, swap->record}, now);
    }
    return sent;
  }
  int report_of(NodeId node, std::uint64_t sequence, TimeMs now) {
    Report report;
    report.node = node;
    report.agent_id = 1;
    report.sequence = sequence;
    report.epoch = 1;
    return handle(MessageArrived{node, report}, now);
  }
  const Node& node() const { return node_; }

 private:
  Node node_;
  std::uint64_t revision_ = 0;
};

TEST(ManyNodes, AFewAreAnsweredAtOnce) {
  LoneRoot root;
  for (NodeId node = 1; node <= 60; ++node) EXPECT_EQ(root.report_of(node, 1, 10), 1);
  EXPECT_EQ(root.node().tick_wanted_at(), std::nullopt);
}

TEST(ManyNodes, WhoReportsWithinAWhileIsAnsweredTogether) {
  LoneRoot root;
  for (NodeId node = 1; node <= 640; ++node) root.report_of(node, 1, 10);
  root.handle(Tick{}, 100);
  EXPECT_EQ(root.node().tick_wanted_at(), std::nullopt);
  int answers = 0;
  for (NodeId node = 1; node <= 640; ++node) answers += root.report_of(node, 2, 100);
  EXPECT_EQ(answers, 0);
  ASSERT_EQ(root.node().tick_wanted_at(), 110);  // 10 ms for so many
  EXPECT_EQ(root.handle(Tick{}, 109), 0);
  EXPECT_EQ(root.handle(Tick{}, 110), 640);
  EXPECT_EQ(root.node().tick_wanted_at(), std::nullopt);
}

TEST(ManyNodes, NoWaitIsLongerThanASecond) {
  LoneRoot root;
  for (NodeId node = 1; node <= 100'000; ++node) root.report_of(node, 1, 10);
  root.handle(Tick{}, 2000);
  root.report_of(1, 2, 2000);
  EXPECT_EQ(root.node().tick_wanted_at(), 3000);
}

TEST(ManyNodes, TheyCommitAndRestoreAsFewDo) {
  constexpr Rank ranks = 80;
  Cluster cluster(ranks, ranks);
  const auto restart = [&] {
    cluster.ready.clear();
    cluster.start_life(own_node);
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
  for (Rank rank = 0; rank < ranks; ++rank) EXPECT_EQ(cluster.commits[rank], Version(1, 1));
  cluster.lose(7);
  cluster.boot(7);
  cluster.advance(500);
  restart();
  EXPECT_EQ(cluster.ready.at(7).decision.version, Version(1, 1));
}

}  // namespace
}  // namespace ckpt::protocol
