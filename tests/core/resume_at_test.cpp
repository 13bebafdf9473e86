// Which iteration is taken next outlives the leader that named it.
#include <gtest/gtest.h>

#include <vector>

#include "cluster.hpp"
#include "lone_node.hpp"

namespace ckpt::core::resume_at {
namespace {

constexpr Rank ranks = 4;

// A leader has named an iteration further ahead than one follows from what the others report, and has told only some
// of them when it is cut off.
class NamedIteration {
 public:
  NamedIteration() {
    cluster.start_incarnation(own_node);
    cluster.begin_training();
    for (std::int64_t iteration : {4, 5, 7}) miss(iteration);
  }
  // Whoever's bit is set hears of it.
  void name_and_tell(std::uint32_t which) {
    const NodeId leader = *cluster.current_leader();
    cluster.arrives = [=](NodeId, const Send& send) {
      const bool is_notified = (which >> send.to & 1) != 0;
      return send.to == leader || is_notified || !std::holds_alternative<Directive>(send.message);
    };
    miss(10);
    cluster.change_leader();
    cluster.arrives = [](NodeId, const Send&) { return true; };
    cluster.advance(5000);
  }
  Cluster cluster{ranks, ranks};

 private:
  // The last rank cannot take it.
  void miss(std::int64_t iteration) {
    cluster.feed(ranks - 1, Progress{ranks - 1, iteration, -1});
    for (Rank rank = 0; rank + 1 < ranks; ++rank) cluster.snapshot(rank, iteration);
  }
};

TEST(ResumeAt, IsTheSameForAllRanksAfterALeaderChange) {
  for (std::uint32_t which = 0; which < 1u << ranks; ++which) {
    NamedIteration job;
    ASSERT_EQ(job.cluster.resume_at.at(0), 10);
    job.name_and_tell(which);
    const std::int64_t named = job.cluster.resume_at.at(0);
    EXPECT_GE(named, 15) << "it was told the former leader's own rank at least";
    for (Rank rank = 0; rank < ranks; ++rank) EXPECT_EQ(job.cluster.resume_at.at(rank), named) << rank << " " << which;
    job.cluster.snapshot_all(named);
    job.cluster.advance(500);
    for (Rank rank = 0; rank < ranks; ++rank) EXPECT_EQ(job.cluster.commits[rank], CheckpointId(1, named)) << which;
  }
}

// However many checkpoints it finds given up when it hears the last member: nobody was told of another one meanwhile.
TEST(ResumeAt, IsTheNextIterationIfANewLeaderAbandonsMany) {
  for (const std::int64_t many : {1, 3, 9}) {
    LoneLeader leader(ranks, placement::Protection::of_copies(2));
    for (NodeId node = 0; node < ranks; ++node) {
      Report report = leader.report_of(node, many);
      for (std::int64_t iteration = 1; iteration <= many && node + 1 < ranks; ++iteration)
        for (const auto& shard : {main_shard(node), private_shard(node)})
          report.pieces.push_back(piece_of(shard, CheckpointId(1, iteration), ranks));
      leader.say(report);
    }
    EXPECT_EQ(leader.newest_to<Directive>(0).abandoned.size(), static_cast<std::size_t>(many));
    EXPECT_EQ(leader.newest_to<Directive>(0).resume_at, many + 1);
  }
}

// One rank takes the iteration, the others miss it. Returns the iteration that is named then.
std::int64_t name_after_miss_of(std::int64_t iteration, LoneLeader& leader) {
  for (NodeId node = 0; node < ranks; ++node) {
    Report report = leader.report_of(node, iteration);
    if (node == 0) {
      for (const auto& shard : {main_shard(node), private_shard(node)})
        report.pieces.push_back(piece_of(shard, CheckpointId(1, iteration), ranks));
    }
    leader.say(report);
  }
  return leader.newest_to<Directive>(0).resume_at;
}

// Ranks that were told late take iterations before the named one: that is no news of whether they will meet there.
TEST(ResumeAt, StaysUnchangedIfLateRanksTakeEarlierIterations) {
  LoneLeader leader(ranks, placement::Protection::of_copies(2));
  std::int64_t named = 1;
  for (int missed = 0; missed < 4; ++missed) named = name_after_miss_of(named, leader);
  ASSERT_GT(named, 8) << "it lies ahead, since ranks were told too late";
  for (std::int64_t iteration = named - 4; iteration < named; ++iteration)
    EXPECT_EQ(name_after_miss_of(iteration, leader), named);
  EXPECT_GT(name_after_miss_of(named, leader), named + 1);
}

// Iterations may last long. Ranks that were told in time may still copy what they took before they were told.
TEST(ResumeAt, IsAFewIterationsAheadOfInformedRanks) {
  Config config;
  config.node_timeout_ms = 20;
  LoneLeader leader(ranks, placement::Protection::of_copies(2), config);
  std::vector<std::int64_t> ahead;
  for (std::int64_t iteration = 1, misses = 0; misses < 6; ++misses, leader.now += config.node_timeout_ms) {
    const std::int64_t named = name_after_miss_of(iteration, leader);
    ahead.push_back(named - iteration);
    iteration = named;
  }
  EXPECT_EQ(ahead, (std::vector<std::int64_t>{1, 2, 3, 5, 5, 5}));
}

}  // namespace
}  // namespace ckpt::core::resume_at
