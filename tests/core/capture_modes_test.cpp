// Ranks that count on replicas capture seldom. They are told whether there are any.
#include <gtest/gtest.h>

#include "cluster.hpp"

namespace ckpt::core::capture_modes {
namespace {

constexpr Rank ranks = 4;

void expect_told(const Cluster& job, bool has_replicas, Verdict verdict) {
  for (Rank rank = 0; rank < ranks; ++rank) {
    ASSERT_TRUE(job.ready.contains(rank)) << rank;
    EXPECT_EQ(job.ready.at(rank).decision.verdict, verdict);
    EXPECT_EQ(job.ready.at(rank).is_replicated, has_replicas) << rank;
  }
}

void expect_told_in_each_incarnation(const std::function<std::string(Rank)>& main_of,
                                     const std::function<NodeId(Rank)>& node_of, bool has_replicas) {
  Cluster job(ranks, ranks);
  job.main_of = main_of;
  job.start_incarnation(node_of);
  expect_told(job, has_replicas, Verdict::fresh);
  job.begin_training();
  job.snapshot_all(1);
  job.advance(3000);
  job.ready.clear();
  job.start_incarnation(node_of);
  job.advance(3000);
  expect_told(job, has_replicas, Verdict::restore);
}

TEST(CaptureModes, RanksLearnThatEachMainShardHasAReplicaOnAnotherNode) {
  expect_told_in_each_incarnation([](Rank rank) { return rank % 2 == 0 ? "even" : "odd"; }, own_node, true);
}

TEST(CaptureModes, RanksLearnThatOneMainShardHasNoReplica) {
  expect_told_in_each_incarnation([](Rank rank) { return rank < 3 ? "shared" : "lone"; }, own_node, false);
}

TEST(CaptureModes, ReplicasOnOneNodeDoNotCount) {
  expect_told_in_each_incarnation([](Rank rank) { return rank < 2 ? "left" : "right"; },
                                  [](Rank rank) { return rank / 2; }, false);
}

}  // namespace
}  // namespace ckpt::core::capture_modes
