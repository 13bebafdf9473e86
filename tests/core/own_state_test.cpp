// A rank that can be halted has a second slot for its private shard.
#include <gtest/gtest.h>

#include <algorithm>

#include "lone_node.hpp"

namespace ckpt::core::own_state {
namespace {

constexpr Rank rank = 0;

class OwnState : public ::testing::Test {
 protected:
  OwnState() {
    node_.follow(lone_leader, 5);
    begin(50);
  }
  void begin(std::uint64_t instance) {
    node_.handle(TrainerHello{rank, instance, 0, 1, main_shard(rank), private_shard(rank)});
    node_.handle(RestoreAsked{rank});
    obey(instance);
    node_.handle(RestoreDone{rank});
    node_.handle(SegmentsReady{rank, {main_shard(rank), private_shard(rank)}, 2, 3});
  }
  void obey(std::uint64_t instance) {
    Directive directive;
    directive.leader = lone_leader;
    directive.epoch = 5;
    directive.sequence = ++sequence_;
    directive.incarnation = 1;
    directive.decision.verdict = Verdict::fresh;
    directive.admitted.push_back({rank, instance, Share{}});
    node_.receive(lone_leader, directive);
  }
  GrantSlots newest_grant() const { return node_.all<GrantSlots>().back(); }
  SlotRef own(std::uint8_t slot) const { return {rank, private_shard(rank), slot}; }
  void capture(std::int64_t iteration, bool in_spare) {
    const CheckpointId checkpoint(1, iteration);
    node_.handle(Captured{
        rank, {piece_of(main_shard(rank), checkpoint, 1), piece_of(private_shard(rank), checkpoint, 1)}, in_spare});
  }
  bool reports(CheckpointId checkpoint, const std::string& shard) const {
    const auto pieces = node_.status().pieces;
    return std::any_of(pieces.begin(), pieces.end(),
                       [&](const PieceInfo& piece) { return piece.checkpoint == checkpoint && piece.shard == shard; });
  }

  LoneNode node_{Config{}};

 private:
  std::uint64_t sequence_ = 0;
};

TEST_F(OwnState, KeepsTheSlotThatACaptureHasNotUsed) {
  EXPECT_EQ(newest_grant().slots.back(), own(0));
  EXPECT_EQ(newest_grant().spare, own(1));
  capture(1, true);
  EXPECT_EQ(newest_grant().slots.back(), own(2));
  EXPECT_EQ(newest_grant().spare, own(0)) << "slot 1 has the capture";
  EXPECT_TRUE(reports({1, 1}, private_shard(rank)));
}

TEST_F(OwnState, CountsInBothSlotsAfterItsTrainerEnds) {
  node_.handle(LeftBehind{rank,
                          {{own(0), piece_of(private_shard(rank), {1, 1}, 1)},
                           {own(1), piece_of(private_shard(rank), {1, 2}, 1)},
                           {own(2), piece_of(private_shard(rank), {1, 3}, 1)}}});
  EXPECT_TRUE(reports({1, 1}, private_shard(rank)));
  EXPECT_TRUE(reports({1, 2}, private_shard(rank)));
  EXPECT_FALSE(reports({1, 3}, private_shard(rank))) << "that slot was not its own";
  EXPECT_EQ(node_.newest_to<Report>(lone_leader).newest_seen, CheckpointId(1, 2));
}

// Else its third slot would be gone for good, and the next trainer could not capture beside a commit.
TEST_F(OwnState, GivesBothSlotsBackWhenItEnds) {
  capture(1, false);
  EXPECT_EQ(newest_grant().slots.back(), own(2));
  EXPECT_EQ(newest_grant().spare, own(1));
  node_.handle(TrainerExited{rank, 50});
  begin(51);
  EXPECT_EQ(newest_grant().slots.back(), own(1)) << "slot 0 has the capture";
  EXPECT_EQ(newest_grant().spare, own(2));
}

// Its trainer has used the grant, lives, and has the spare slot.
class AgentThatStartsAgain : public ::testing::Test {
 protected:
  AgentThatStartsAgain() : node_{Config{}, recovered()} {
    node_.follow(lone_leader, 5);
    Directive directive;
    directive.leader = lone_leader;
    directive.epoch = 5;
    directive.sequence = 1;
    directive.incarnation = 1;
    directive.decision.verdict = Verdict::fresh;
    directive.admitted.push_back({rank, 50, Share{}});
    node_.receive(lone_leader, directive);
  }
  static SlotRef own(std::uint8_t slot) { return {rank, private_shard(rank), slot}; }
  static Recovered recovered() {
    Recovered found;
    for (std::uint8_t slot = 0; slot < 2; ++slot) found.slots.push_back({{rank, main_shard(rank), slot}, {}, false});
    for (std::uint8_t slot = 0; slot < 3; ++slot) found.slots.push_back({own(slot), {}, false});
    found.granted.push_back({rank, {}, own(0)});
    return found;
  }
  void come_back() {
    node_.handle(TrainerHello{rank, 50, 1, 1, main_shard(rank), private_shard(rank)});
    node_.handle(SegmentsReady{rank, {main_shard(rank), private_shard(rank)}, 2, 3});
  }
  bool reports(CheckpointId checkpoint) const {
    const auto pieces = node_.status().pieces;
    return std::any_of(pieces.begin(), pieces.end(),
                       [&](const PieceInfo& piece) { return piece.checkpoint == checkpoint; });
  }

  LoneNode node_;
};

TEST_F(AgentThatStartsAgain, KeepsTheTrainersSlotForItsOwnState) {
  come_back();
  ASSERT_EQ(node_.all<GrantSlots>().size(), 1u);
  EXPECT_EQ(node_.all<GrantSlots>()[0].slots.back(), own(1)) << "the trainer may be writing to slot 0";
  EXPECT_EQ(node_.all<GrantSlots>()[0].spare, own(0));
  node_.handle(LeftBehind{rank, {{own(0), piece_of(private_shard(rank), {1, 6}, 1)}}});
  EXPECT_TRUE(reports({1, 6}));
}

TEST_F(AgentThatStartsAgain, CountsOwnStateOfATrainerThatDiesBeforeItReconnects) {
  node_.handle(LeftBehind{rank, {{own(0), piece_of(private_shard(rank), {1, 6}, 1)}}});
  EXPECT_TRUE(reports({1, 6}));
}

TEST_F(AgentThatStartsAgain, TakesTheSlotBackFromATrainerThatDiesBeforeItReconnects) {
  node_.handle(TrainerExited{rank, 50});
  come_back();
  ASSERT_EQ(node_.all<GrantSlots>().size(), 1u);
  EXPECT_EQ(node_.all<GrantSlots>()[0].slots.back(), own(0));
}

constexpr Rank ranks = 4;

// Four ranks with one main shard on as many nodes. Iteration 40 is committed.
struct HaltingJob : Cluster {
  HaltingJob() : Cluster(0, ranks) {
    configure = [](Config& config) { config.halts = true; };
    main_of = [](Rank) { return std::string("model"); };
    spare_slots = 1;
    for (NodeId node = 0; node < ranks; ++node) boot(node);
    start_incarnation(own_node);
    begin_training();
    snapshot_all(40);
    advance(3000);
  }
  // It leaves own state of the iteration whose update it has finished, and of the one that it was about to update.
  void die_within_update(Rank dead, std::int64_t iteration) {
    for (Rank each = 0; each < ranks; ++each) feed(own_node(each), Progress{each, iteration - 1, iteration - 1});
    const SlotRef last = granted().at(dead).back(), next = spare(dead);
    feed(own_node(dead), LeftBehind{dead,
                                    {{last, piece_of(last.shard, {1, iteration - 1}, ranks)},
                                     {next, piece_of(next.shard, {1, iteration}, ranks)}}});
    exit_trainer(dead);
    feed(own_node(dead), RanksWatched{{{dead, 1, RankTrouble::dead, 'Z', iteration - 1, 6u, 3000, 0}}, {}});
    advance(1000);
  }
  void capture_late(Rank survivor, std::int64_t iteration) {
    EXPECT_TRUE(snapshot(survivor, iteration)) << survivor;
    feed(own_node(survivor), FreezeAnswered{survivor, {halts.at(survivor).back().halt, Freeze::captured, iteration}});
    advance(100);
  }
  CheckpointId restored_after_restart() {
    ready.clear();
    start_incarnation(own_node);
    advance(3000);
    return ready.contains(0) ? ready.at(0).decision.checkpoint : CheckpointId();
  }
};

TEST(OwnStateOfADeadRank, LetsTheJobRestoreTheUpdateThatTheOthersFinished) {
  HaltingJob job;
  job.die_within_update(2, 44);
  for (const Rank survivor : {0u, 1u, 3u}) job.capture_late(survivor, 44);
  EXPECT_EQ(job.restored_after_restart(), CheckpointId(1, 44));
}

TEST(OwnStateOfADeadRank, LetsTheJobRestoreThePreviousUpdateIfNoRankFinishedTheLast) {
  HaltingJob job;
  job.die_within_update(2, 44);
  for (const Rank survivor : {0u, 1u, 3u}) job.capture_late(survivor, 43);
  EXPECT_EQ(job.restored_after_restart(), CheckpointId(1, 43));
}

}  // namespace
}  // namespace ckpt::core::own_state
