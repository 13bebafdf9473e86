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
    node.follow(lone_leader, 5);
    node.handle(TrainerHello{rank, 50, 0, 1, main_shard(rank), private_shard(rank)});
    node.handle(RestoreAsked{rank});
    obey();
    node.handle(RestoreDone{rank});
    node.handle(SegmentsReady{rank, {main_shard(rank), private_shard(rank)}, 2, 3});
  }
  void obey(CheckpointId committed = {}) {
    Directive directive;
    directive.leader = lone_leader;
    directive.epoch = 5;
    directive.sequence = ++sequence_;
    directive.incarnation = 1;
    directive.decision.verdict = Verdict::fresh;
    directive.admitted.push_back({rank, 50, Share{}});
    directive.committed = committed;
    node.receive(lone_leader, directive);
  }
  GrantSlots newest_grant() const { return node.all<GrantSlots>().back(); }
  SlotRef own(std::uint8_t slot) const { return {rank, private_shard(rank), slot}; }
  void capture(std::int64_t iteration, bool in_spare) {
    const CheckpointId checkpoint(1, iteration);
    node.handle(Captured{
        rank, {piece_of(main_shard(rank), checkpoint, 1), piece_of(private_shard(rank), checkpoint, 1)}, in_spare});
  }
  bool reports(CheckpointId checkpoint, const std::string& shard) const {
    const auto pieces = node.status().pieces;
    return std::any_of(pieces.begin(), pieces.end(),
                       [&](const PieceInfo& piece) { return piece.checkpoint == checkpoint && piece.shard == shard; });
  }

  LoneNode node{Config{}};

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

TEST_F(OwnState, LeavesItsOwnStateInBothSlots) {
  node.handle(LeftBehind{rank,
                         {{own(0), piece_of(private_shard(rank), {1, 1}, 1)},
                          {own(1), piece_of(private_shard(rank), {1, 2}, 1)},
                          {own(2), piece_of(private_shard(rank), {1, 3}, 1)}}});
  EXPECT_TRUE(reports({1, 1}, private_shard(rank)));
  EXPECT_TRUE(reports({1, 2}, private_shard(rank)));
  EXPECT_FALSE(reports({1, 3}, private_shard(rank))) << "that slot was not its own";
}

TEST_F(OwnState, GivesBothSlotsBackWhenItEnds) {
  node.handle(TrainerExited{rank, 50});
  node.handle(TrainerHello{rank, 51, 0, 1, main_shard(rank), private_shard(rank)});
  EXPECT_EQ(node.all<GrantSlots>().size(), 1u);
}

}  // namespace
}  // namespace ckpt::core::own_state
