// What the protocol costs as the job grows: counts, which are the same on every machine, and no times.
#include "sim/scale.hpp"

#include <gtest/gtest.h>

namespace ckpt::sim {
namespace {

ScaleResult run(core::NodeId nodes, std::uint32_t sharers = 1) {
  return run_scale(nodes, sharers, [](const std::string&) {});
}

TEST(Scale, ThousandNodesCommitLoseOneRestoreAndCommitAgain) {
  const ScaleResult result = run(1000);
  EXPECT_EQ(result.violations, std::vector<std::string>());
  EXPECT_EQ(result.lost, 1u);
  EXPECT_EQ(result.commits, 4);
}

TEST(Scale, WorkersTrafficDoesNotDependOnTheNumberOfNodes) {
  const ScaleResult few = run(32);
  const ScaleResult many = run(1000);
  EXPECT_GT(many.messages_worker, 0);
  EXPECT_LE(many.messages_worker, few.messages_worker);
  EXPECT_LE(many.bytes_worker, 1.1 * few.bytes_worker);
}

TEST(Scale, BytesToTheLeaderGrowLinearlyWithNodes) {
  const ScaleResult few = run(32);
  const ScaleResult many = run(1000);
  EXPECT_LE(many.bytes_leader / 1000, 1.1 * few.bytes_leader / 31);
  // The leader may order what it heard first before it has heard the rest: five of then nine hops are to it or from it.
  EXPECT_LE(many.hops, 9 + 5);
}

// From 256 nodes on it hears them through relays.
TEST(Scale, LeadersMessagesGrowAsTheSquareRootOfNodes) {
  const ScaleResult few = run(400);
  const ScaleResult many = run(1600);
  EXPECT_GT(few.messages_leader, 0);
  EXPECT_LE(few.messages_leader, run(200).messages_leader / 4);
  EXPECT_LE(many.messages_leader, 3 * few.messages_leader);
  EXPECT_LE(many.messages_relay, 3 * few.messages_relay);
}

TEST(Scale, RanksThatShareShardsCommitLoseOneRestoreAndCommitAgain) {
  const ScaleResult result = run(100, 24);  // the last shard is shared by more
  EXPECT_EQ(result.violations, std::vector<std::string>());
  EXPECT_EQ(result.commits, 4);
  EXPECT_GE(result.fetched, 100u * 22u);  // two of the parts are there
}

// Each of them brings home almost all parts, and reports them all after each one: the cube of their number, and no
// more.
TEST(Scale, LeadersBytesForSharedShardsGrowAsTheirReportsDo) {
  const ScaleResult few = run(16, 16);
  const ScaleResult many = run(64, 64);
  EXPECT_EQ(many.violations, std::vector<std::string>());
  EXPECT_LE(many.restart_bytes_leader / (64. * 64 * 64), few.restart_bytes_leader / (16. * 16 * 16));
}

// What is in proportion to the nodes is in as many records as it takes.
TEST(Scale, RecordsInTheStoreDoNotGrowWithNodes) {
  const ScaleResult few = run(1100);
  const ScaleResult many = run(2200);
  EXPECT_GT(few.record_bytes, 0u);
  EXPECT_LE(static_cast<double>(many.record_bytes), 1.1 * static_cast<double>(few.record_bytes));  // longer numbers
}

// Two copies of every shard: the piece goes to the partner, and the news of it to the leader and back.
TEST(Scale, CommitTakesSixHops) { EXPECT_EQ(run(16).hops, 6); }

}  // namespace
}  // namespace ckpt::sim
