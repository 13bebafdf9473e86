// What the protocol costs as the job grows: counts, which are the same on every machine, and no times.
#include "sim/scale.hpp"

#include <gtest/gtest.h>

namespace ckpt::sim {
namespace {

ScaleResult run(protocol::NodeId nodes) {
  return run_scale(nodes, [](const std::string&) {});
}

TEST(Scale, AThousandNodesCommitLoseOneRestoreAndCommitAgain) {
  const ScaleResult result = run(1000);
  EXPECT_EQ(result.violations, std::vector<std::string>());
  EXPECT_EQ(result.lost, 1u);
  EXPECT_EQ(result.commits, 4);
}

TEST(Scale, AWorkerDoesNotNoticeHowManyNodesThereAre) {
  const ScaleResult few = run(32);
  const ScaleResult many = run(1000);
  EXPECT_GT(many.messages_worker, 0);
  EXPECT_LE(many.messages_worker, few.messages_worker);
  EXPECT_LE(many.bytes_worker, 1.1 * few.bytes_worker);
}

TEST(Scale, TheRootsMessagesGrowAsTheNodesDo) {
  const ScaleResult few = run(32);
  const ScaleResult many = run(1000);
  EXPECT_LE(many.messages_root / 1000, few.messages_root / 31);
  EXPECT_LE(many.bytes_root / 1000, 1.1 * few.bytes_root / 31);
  EXPECT_EQ(many.hops, few.hops);
}

// Two copies of every shard: the piece goes to the partner, and the news of it to the root and back.
TEST(Scale, ACommitTakesSixHops) { EXPECT_EQ(run(16).hops, 6); }

}  // namespace
}  // namespace ckpt::sim
