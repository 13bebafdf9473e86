// Nothing is decided before every node that seems to be there has answered since all ranks wait: a dead one seems to be
// there for a while.
#include <gtest/gtest.h>

#include "lone_node.hpp"

namespace ckpt::core::roll_call {
namespace {

constexpr Rank ranks = 3;

// Ranks on three nodes, two of which have what the incarnation before has committed, wait for a new incarnation's
// decision. Whoever answers says that it heard the roll call; the others go on repeating what they said before, as
// nodes do whose reports are late.
class WaitingJob {
 public:
  WaitingJob() : leader(ranks, placement::Protection::of_copies(2)) {
    for (NodeId node = 0; node < ranks; ++node) say(node, 0, false);
    leader.now += 100;
    for (NodeId node = 0; node < ranks; ++node) say(node, 0, true);
  }
  // Everybody goes on reporting.
  void wait(TimeMs for_ms, std::uint32_t answering) {
    for (TimeMs ms = 0; ms < for_ms; ms += 250) {
      leader.now += 250;
      for (NodeId node = 0; node < ranks; ++node) {
        const bool answers = (answering >> node & 1) != 0;
        say(node, answers ? leader.newest_to<Directive>(node).roll_call : 0, true);
      }
    }
  }
  bool is_decided() const { return leader.incarnation_record().decision.verdict != Verdict::undecided; }

  // A hello of every rank, which is the incarnation's second, opens the next one.
  void say(NodeId node, std::uint64_t roll_call, bool waiting) {
    Report report = leader.report_of(node);
    report.roll_call = roll_call;
    report.highest_commit = report.newest_seen = CheckpointId(1, 3);
    RankReport& trainer = report.ranks[0];
    trainer.instance = 70 + node;
    trainer.incarnation =
        waiting && leader.incarnation_record().incarnation > 1 ? leader.incarnation_record().incarnation : 0;
    trainer.waiting = waiting;
    for (const Rank rank : {node, (node + 1) % ranks})
      for (const auto& shard : {main_shard(rank), private_shard(rank)})
        report.pieces.push_back(piece_of(shard, CheckpointId(1, 3), ranks));
    leader.say(report);
  }

  LoneLeader leader;
};

TEST(RollCall, MustBeAnsweredByEveryPresentNodeBeforeADecision) {
  constexpr std::uint32_t all = (1u << ranks) - 1;
  for (std::uint32_t answering = 0; answering <= all; ++answering) {
    WaitingJob job;
    ASSERT_EQ(job.leader.incarnation_record().incarnation, 2u);
    job.wait(10'000, answering);
    EXPECT_EQ(job.is_decided(), answering == all) << answering;
    job.wait(10'000, all);
    EXPECT_TRUE(job.is_decided());
    EXPECT_EQ(job.leader.incarnation_record().decision.checkpoint, CheckpointId(1, 3));
  }
}

// A rank has not waited for a moment: what the others have said is from before.
TEST(RollCall, IsRepeatedWhenAllRanksWaitAgain) {
  WaitingJob job;
  job.wait(1000, 0b011);
  const std::uint64_t first = job.leader.newest_to<Directive>(0).roll_call;
  job.say(0, first, false);
  for (TimeMs ms = 0; ms < 10'000; ms += 250) {
    job.leader.now += 250;
    for (NodeId node = 0; node < ranks; ++node) job.say(node, first, true);
  }
  EXPECT_FALSE(job.is_decided());
  job.wait(10'000, 0b111);
  EXPECT_TRUE(job.is_decided());
}

// Every node dies, at every moment before the ranks wait: nothing that it alone had is chosen.
TEST(RollCall, ExcludesNodesThatDieAtAnyMoment) {
  for (TimeMs before_ms = 0; before_ms <= 2500; before_ms += 500) {
    for (NodeId dying = 0; dying < 4; ++dying) {
      Cluster cluster(4, 4);
      cluster.start_incarnation(own_node);
      cluster.begin_training();
      cluster.snapshot_all(1);
      cluster.fetching = false;
      cluster.snapshot_all(2);  // each on its own node alone
      cluster.advance(500);
      cluster.lose(dying);
      cluster.fetching = true;
      cluster.advance(before_ms);
      cluster.boot(4);
      cluster.ready.clear();
      cluster.start_incarnation([=](Rank rank) { return rank == dying ? NodeId{4} : rank; });
      cluster.advance(30'000);
      ASSERT_EQ(cluster.ready.size(), 4u) << dying << " " << before_ms;
      for (const auto& [rank, ready] : cluster.ready) EXPECT_EQ(ready.decision.checkpoint, CheckpointId(1, 1)) << rank;
    }
  }
}

}  // namespace
}  // namespace ckpt::core::roll_call
