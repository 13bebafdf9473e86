// Damage to one copy, or to one record, stops nobody else and is not taken for knowledge.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/epoch.hpp"
#include "core/plausible.hpp"
#include "lone_node.hpp"

namespace ckpt::core {
namespace {

using ::testing::HasSubstr;

// ---- One damaged copy of a checkpoint that is not committed yet ----

// Four ranks, two copies: what rank 0 captures, node 1 holds. Iteration 5 is committed; ranks 0 to 2 are at 7, and rank
// 3 is late. So node 1 has 5 and 6 of rank 0, and 7 waits there for a slot.
struct DamagedCopy : Cluster {
  DamagedCopy() : Cluster(4, 4) {
    arrives = [this](NodeId, const Send& send) {
      const auto* directive = std::get_if<Directive>(&send.message);
      if (directive != nullptr && send.to == 1) order = {directive->leader, *directive};
      return true;
    };
    own_slots = 3;
    start_incarnation(own_node);
    begin_training();
    snapshot_all(5);
    for (const std::int64_t iteration : {6, 7})
      for (const Rank rank : {0u, 1u, 2u}) snapshot(rank, iteration);
  }
  bool has(NodeId node, const std::string& shard, std::int64_t iteration) const {
    return find_slot(node, piece_of(shard, CheckpointId(1, iteration), 4)) != nullptr;
  }
  void damage_iteration_6() {
    for (const auto& shard : {main_shard(0), private_shard(0)}) {
      const SlotRef* slot = find_slot(1, piece_of(shard, CheckpointId(1, 6), 4));
      ASSERT_NE(slot, nullptr) << shard;
      feed(1, PieceCorrupt{SlotRef(*slot)});
    }
    advance(100);
  }
  std::pair<NodeId, Directive> order;  // that node 1 was sent last
};

TEST(DamagedCopies, AreReplacedBeforeAnyNewerCheckpointTakesTheirSlot) {
  DamagedCopy job;
  ASSERT_TRUE(job.has(1, main_shard(0), 6));
  ASSERT_FALSE(job.has(1, main_shard(0), 7));
  ASSERT_NO_FATAL_FAILURE(job.damage_iteration_6());
  EXPECT_TRUE(job.has(1, main_shard(0), 6));
  job.snapshot(3, 6);
  EXPECT_EQ(job.status(0).committed, CheckpointId(1, 6));
  job.snapshot(3, 7);
  EXPECT_EQ(job.status(0).committed, CheckpointId(1, 7));
}

// An agent that starts again remembers no slot, and an order that was on its way all the while may be the first it
// gets.
TEST(DamagedCopies, AreReplacedFirstEvenByARestartedAgent) {
  DamagedCopy job;
  const auto [leader, order] = job.order;
  job.arrives = [](NodeId from, const Send& send) { return from != 1 && send.to != 1; };
  job.rot(1, main_shard(0), CheckpointId(1, 6));
  job.rot(1, private_shard(0), CheckpointId(1, 6));
  job.restart_agent(1);
  job.come_back(1);
  job.feed(1, MessageArrived{leader, order});
  job.advance(100);
  EXPECT_FALSE(job.has(1, main_shard(0), 7));
  job.arrives = [](NodeId, const Send&) { return true; };
  job.begin_training(1);
  job.advance(1000);
  EXPECT_TRUE(job.has(1, main_shard(0), 6));
  job.snapshot(3, 6);
  EXPECT_EQ(job.status(0).committed, CheckpointId(1, 6));
  job.snapshot(3, 7);
  EXPECT_EQ(job.status(0).committed, CheckpointId(1, 7));
}

// ---- Who may say that nothing newer was committed ----

// The leader alone knows that iteration 8 is committed. Node 1, which has lost its copy of it to damage, is asked.
TEST(Witnesses, NodesThatDroppedANewerCopyDoNotTestifyAgainstIt) {
  for (const bool restarts : {false, true}) {
    Cluster job(4, 4);
    job.start_incarnation(own_node);
    job.begin_training();
    job.snapshot_all(7);
    const NodeId leader = *job.current_leader();
    ASSERT_EQ(leader, 0u);
    job.arrives = [](NodeId from, const Send& send) {
      return from != 0 || !std::holds_alternative<Directive>(send.message) ||
             std::get<Directive>(send.message).committed < CheckpointId(1, 8);
    };
    job.snapshot_all(8);
    ASSERT_EQ(job.status(0).committed, CheckpointId(1, 8));
    ASSERT_EQ(job.status(1).committed, CheckpointId(1, 7));
    for (const auto& shard : {main_shard(0), private_shard(0)}) job.rot(1, shard, CheckpointId(1, 8));
    job.lose(0);
    job.arrives = [](NodeId, const Send&) { return true; };
    if (restarts) job.restart_agents();
    job.ready.clear();
    job.start_incarnation([](Rank rank) { return rank == 0 ? 1 : rank; });
    job.advance(15'000);
    ASSERT_EQ(job.ready.size(), 4u);
    EXPECT_EQ(job.ready.at(1).decision.checkpoint, CheckpointId(1, 7));
    EXPECT_TRUE(job.ready.at(1).decision.behind || job.ready.at(1).decision.status_unknown) << restarts;
  }
}

// ---- What the survivors say ----

TEST(Survivors, KnowTheNewestCommitAfterTheLeaderIsLost) {
  Cluster job(3, 3);
  job.start_incarnation(own_node);
  job.begin_training();
  for (const std::int64_t iteration : {141, 142, 143}) job.snapshot_all(iteration);
  const NodeId leader = *job.current_leader();
  job.lose(leader);
  for (int i = 0; i < 200; ++i) {
    job.advance(50);
    for (NodeId node = 0; node < 3; ++node)
      if (node != leader) {
        ASSERT_EQ(job.status(node).committed, CheckpointId(1, 143));
      }
  }
  ASSERT_NE(job.current_leader(), std::nullopt);
  const NodeId survivor = (leader + 1) % 3;
  job.restart_agent(survivor);
  EXPECT_EQ(job.status(survivor).committed, CheckpointId(1, 143));
}

TEST(Survivors, KnowTheRestoredCheckpointOfAnIncarnationWithoutCommits) {
  Cluster job(3, 3);
  job.start_incarnation(own_node);
  job.begin_training();
  job.snapshot_all(143);
  job.start_incarnation(own_node);
  job.advance(500);
  const NodeId leader = *job.current_leader();
  job.lose(leader);
  job.advance(10'000);
  EXPECT_EQ(job.status((leader + 1) % 3).committed, CheckpointId(1, 143));
}

// ---- Damaged records ----

struct DamagedRecord : Cluster {
  DamagedRecord() : Cluster(3, 3) {
    start_incarnation(own_node);
    begin_training();
    snapshot_all(1);
    advance(1000);
  }
  void expect_notified(const std::string& what) const {
    for (NodeId node = 0; node < 3; ++node) {
      EXPECT_THAT(status(node).record_trouble, HasSubstr(what));
      EXPECT_THAT(status(node).record_trouble, HasSubstr("ckptctl gc --records"));
    }
    EXPECT_THAT(notices, ::testing::Contains(HasSubstr(what)));
  }
  // The job goes on, and after the records were removed it starts again from the newest commit.
  void expect_unharmed() {
    advance(10'000);
    snapshot_all(2);
    EXPECT_EQ(status(0).committed, CheckpointId(1, 2));
    lose_records();
    advance(3000);
    for (NodeId node = 0; node < 3; ++node) EXPECT_EQ(status(node).record_trouble, "");
    start_incarnation(own_node);
    advance(10'000);
    ASSERT_EQ(ready.size(), 3u);
    EXPECT_EQ(ready.at(0).decision.checkpoint, CheckpointId(1, 2));
    begin_training();
    snapshot_all(3);
    EXPECT_EQ(status(0).committed, CheckpointId(2, 3));
    advance(10'000);
    EXPECT_LT(term_of(status(0).epoch), 1000u);
  }
};

TEST(DamagedRecords, ReportsAndIgnoresAnImpossibleEpoch) {
  DamagedRecord job;
  job.damage([](LeaderRecord& leader, IncarnationRecord&) { leader.epoch = UINT64_MAX; });
  job.expect_notified("\"leader\" is damaged: its epoch is 18446744073709551615");
  job.expect_unharmed();
}

TEST(DamagedRecords, IgnoresAnImpossibleEpochInAnIncarnationRecord) {
  DamagedRecord job;
  job.damage([](LeaderRecord&, IncarnationRecord& incarnation_record) { incarnation_record.epoch = UINT64_MAX; });
  job.expect_notified("\"incarnation\" is damaged: its epoch is");
  job.expect_unharmed();
}

TEST(DamagedRecords, IgnoresTheHighestPossibleIncarnation) {
  DamagedRecord job;
  job.damage([](LeaderRecord&, IncarnationRecord& incarnation_record) {
    incarnation_record.incarnation = CheckpointId::incarnation_max;
  });
  job.expect_notified("\"incarnation\" is damaged: its incarnation is 16777215");
  job.expect_unharmed();
}

TEST(DamagedRecords, IgnoresMessagesWithAnImpossibleEpoch) {
  DamagedRecord job;
  Directive directive;
  directive.leader = 2;
  directive.epoch = UINT64_MAX;
  directive.incarnation = 9;
  Report report;
  report.node = 7;
  report.epoch = UINT64_MAX;
  for (NodeId node = 0; node < 3; ++node) {
    job.feed(node, MessageArrived{2, directive});
    job.feed(node, MessageArrived{7, report});
  }
  job.expect_unharmed();
}

TEST(DamagedRecords, ForgetsAnImpossibleEpochOfAnEarlierAgent) {
  DamagedRecord job;
  Recovered recovered;
  recovered.epoch = UINT64_MAX;
  job.boot(2, 77, recovered);
  job.advance(10'000);
  EXPECT_LT(term_of(job.status(2).epoch), 1000u);
  EXPECT_EQ(job.status(2).epoch, job.status(*job.current_leader()).epoch);
}

// Elections that a node slept through.
TEST(DamagedRecords, FollowsADistantButPossibleEpoch) {
  DamagedRecord job;
  job.damage([](LeaderRecord& leader, IncarnationRecord&) { leader.epoch += epoch_of(1'000'000, 0); });
  job.advance(10'000);
  ASSERT_NE(job.current_leader(), std::nullopt);
  EXPECT_GT(term_of(job.status(*job.current_leader()).epoch), 1'000'000u);
  job.snapshot_all(2);
  EXPECT_EQ(job.status(0).committed, CheckpointId(1, 2));
}

TEST(DamagedRecords, IgnoresCheckpointsOfFutureIncarnations) {
  Cluster job(2, 2);
  Recovered recovered;
  const CheckpointId absurd(CheckpointId::incarnation_max, 5);
  for (Rank rank = 0; rank < 2; ++rank)
    for (const auto& shard : {main_shard(rank), private_shard(rank)}) {
      const SlotRef slot{held_rank, shard, 0};
      recovered.slots.push_back({slot, piece_of(shard, absurd, 2), true});
    }
  job.boot(1, 78, recovered);
  job.start_incarnation(own_node);
  job.advance(10'000);
  ASSERT_EQ(job.ready.size(), 2u);
  EXPECT_EQ(job.ready.at(0).decision.verdict, Verdict::fresh);
  EXPECT_LT(job.incarnation(), 10u);
  job.begin_training();
  job.snapshot_all(1);
  EXPECT_EQ(job.status(0).committed, CheckpointId(job.incarnation(), 1));
}

// However small the step is from what this node's own memory says, which may be damaged, too.
TEST(DamagedRecords, NeverAcceptsAnEpochAboveTheMaximum) {
  Recovered recovered;
  recovered.epoch = epoch_max;
  LoneNode node{Config{}, recovered};
  node.handle(LeaderRecordRead{1, {epoch_max, lone_leader, 0}});
  EXPECT_EQ(node.status().record_trouble, "");
  node.handle(LeaderRecordRead{2, {epoch_max + 1, lone_leader, 0}});
  EXPECT_THAT(node.status().record_trouble, HasSubstr("\"leader\" is damaged: its epoch is"));
}

TEST(DamagedRecords, RejectsAnIncarnationFarFromTheNewest) {
  const auto incarnation_of = [](std::uint64_t incarnation) {
    IncarnationRecord incarnation_record;
    incarnation_record.incarnation = incarnation;
    return incarnation_record;
  };
  LoneNode node{Config{}};
  node.handle(IncarnationRecordRead{1, incarnation_of(3)});
  node.handle(IncarnationRecordRead{2, incarnation_of(4 + incarnation_jump_max)});
  EXPECT_THAT(node.status().record_trouble, HasSubstr("\"incarnation\" is damaged: its incarnation is 65540"));
  node.handle(IncarnationRecordRead{3, incarnation_of(3 + incarnation_jump_max)});
  EXPECT_EQ(node.status().record_trouble, "") << "lives that it slept through";
}

// ---- Suspicions ----

// Its node number says nothing about what a machine has: another memory under it is no member's.
TEST(Commits, DoNotCountPiecesInAnotherArenaWithAMembersNumber) {
  Cluster job(2, 2);
  job.start_incarnation(own_node);
  job.begin_training();
  job.snapshot_all(1);
  job.fetching = false;
  job.snapshot(0, 2);
  job.snapshot(1, 2);
  Recovered recovered;
  for (Rank rank = 0; rank < 2; ++rank)
    for (const auto& shard : {main_shard(rank), private_shard(rank)}) {
      const SlotRef slot{held_rank, shard, 0};
      recovered.slots.push_back({slot, piece_of(shard, CheckpointId(1, 2), 2), true});
    }
  Recovered own = recovered;
  job.boot(1, 79, own);
  job.release_fetches();
  job.advance(5000);
  EXPECT_EQ(job.status(0).committed, CheckpointId(1, 1));
}

// Ranks of one node name one shard that is not cut: both capture all of it.
TEST(Commits, NeverCountDifferingRanksOfOneNode) {
  Cluster job(2, 4);
  job.main_of = [](Rank) { return std::string("model"); };
  job.strategy = placement::Strategy::group;
  for (NodeId node = 0; node < 2; ++node) job.boot(node);
  job.advance(3000);
  job.start_incarnation([](Rank rank) { return rank / 2; });
  job.begin_training();
  job.snapshot_all(1);
  ASSERT_EQ(job.status(0).committed, CheckpointId(1, 1));
  const CheckpointId checkpoint(1, 2);
  for (const Rank rank : {0u, 1u}) {
    Captured captured{rank, {}};
    for (const SlotRef& slot : job.granted().at(rank)) captured.pieces.push_back(piece_of(slot.shard, checkpoint, 4));
    if (rank == 1) captured.pieces.front().root_digest ^= 1;
    job.feed(0, captured);
    job.feed(0, Progress{rank, 2, -1});
  }
  for (const Rank rank : {2u, 3u}) job.snapshot(rank, 2);
  job.advance(1000);
  EXPECT_EQ(job.status(0).committed, CheckpointId(1, 1));
  EXPECT_THAT(job.status(0).alarm, HasSubstr("silent data corruption: shard model"));
  job.ready.clear();
  job.start_incarnation([](Rank rank) { return rank / 2; });
  job.advance(10'000);
  ASSERT_EQ(job.ready.size(), 4u);
  EXPECT_EQ(job.ready.at(1).decision.checkpoint, CheckpointId(1, 1));
}

}  // namespace
}  // namespace ckpt::core
