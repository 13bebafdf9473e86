// Which copies a node makes by repeating an update, and when the result counts.
#include "core/repeated_updates.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace ckpt::core {
namespace {

constexpr std::uint64_t piece_length_bytes = 1000;

class RepeatedUpdatesTest : public ::testing::Test {
 protected:
  StartFetch order(CheckpointId checkpoint, std::uint8_t slot, const char* shard = "rank1") const {
    StartFetch fetch;
    fetch.piece.shard = shard;
    fetch.piece.checkpoint = checkpoint;
    fetch.piece.length_bytes = piece_length_bytes;
    fetch.source = 4;
    fetch.slot = {held_rank, shard, slot};
    return fetch;
  }
  void hold(std::uint8_t slot, CheckpointId checkpoint, std::uint64_t size = piece_length_bytes) {
    held_.push_back({{held_rank, "rank1", slot}, checkpoint, size});
  }
  // The slot of the base; -1: the piece is fetched in full.
  int base_slot(const StartFetch& fetch, bool urgent = false) const {
    const auto choice = updates_.choose(fetch, urgent, held_);
    return choice.base == nullptr ? -1 : choice.base->slot.slot;
  }

  std::vector<RepeatedUpdates::Held> held_;
  RepeatedUpdates updates_;
};

TEST_F(RepeatedUpdatesTest, ChoosesTheIncarnationsNewestEarlierCheckpointAsBase) {
  hold(0, {5, 69});
  hold(1, {5, 70});
  hold(2, {5, 71});
  hold(3, {4, 99});
  EXPECT_EQ(base_slot(order({5, 71}, 2)), 1);
  EXPECT_EQ(base_slot(order({6, 1}, 2)), -1);
}

TEST_F(RepeatedUpdatesTest, ChoosesNoBaseOfAnotherSizeOrInTheTargetSlot) {
  hold(0, {5, 70}, piece_length_bytes + 1);
  hold(1, {5, 70});
  EXPECT_EQ(base_slot(order({5, 71}, 1)), -1);
  EXPECT_EQ(base_slot(order({5, 71}, 0)), 1);
}

TEST_F(RepeatedUpdatesTest, ConsidersOnlyCopiesOfMainShardsThatAreNotUrgent) {
  hold(1, {5, 70});
  StartFetch fetch = order({5, 71}, 0);
  EXPECT_TRUE(updates_.choose(fetch, false, held_).is_candidate);
  EXPECT_FALSE(updates_.choose(fetch, true, held_).is_candidate);
  EXPECT_EQ(base_slot(fetch, true), -1);
  for (const NodeId other : {storage_node, parity_node}) {
    fetch.source = other;
    EXPECT_FALSE(updates_.choose(fetch, false, held_).is_candidate);
  }
  EXPECT_FALSE(updates_.choose(order({5, 71}, 0, "rank1.private"), false, held_).is_candidate);
  fetch = order({5, 71}, 0);
  fetch.piece.parity_manifest.rows = 1;
  EXPECT_FALSE(updates_.choose(fetch, false, held_).is_candidate);
}

TEST_F(RepeatedUpdatesTest, StopsRepeatingAfterThreeFailuresInARow) {
  hold(1, {5, 70});
  const StartFetch fetch = order({5, 71}, 0);
  EXPECT_FALSE(updates_.ended("rank1", RepeatEnd::unequal));
  EXPECT_FALSE(updates_.ended("rank1", RepeatEnd::unequal));
  EXPECT_FALSE(updates_.ended("rank1", RepeatEnd::equal));
  for (std::uint32_t i = 1; i < RepeatedUpdates::vain_max; ++i) {
    EXPECT_FALSE(updates_.ended("rank1", RepeatEnd::unequal));
    EXPECT_FALSE(updates_.ended("rank1", RepeatEnd::damaged));
    EXPECT_FALSE(updates_.ended("rank1", RepeatEnd::missing));
    EXPECT_FALSE(updates_.ended("rank2", RepeatEnd::unequal)) << "of another shard";
  }
  EXPECT_EQ(base_slot(fetch), 1);
  EXPECT_TRUE(updates_.ended("rank1", RepeatEnd::unequal));
  EXPECT_EQ(base_slot(fetch), -1);
  EXPECT_TRUE(updates_.choose(fetch, false, held_).is_candidate) << "it counts as one that was not repeated";
}

TEST_F(RepeatedUpdatesTest, AcceptsAResultOnlyIfTheOwnersDigestsMatch) {
  EXPECT_EQ(judge_repeated(true, true), RepeatEnd::equal);
  EXPECT_EQ(judge_repeated(false, true), RepeatEnd::unequal);
  EXPECT_EQ(judge_repeated(false, false), RepeatEnd::damaged);
}

TEST_F(RepeatedUpdatesTest, RequiresGradientsThatLeadFromTheBaseToThePiece) {
  const PieceShape before{{5, 70}, piece_length_bytes, 7}, after{{5, 71}, piece_length_bytes, 7};
  EXPECT_EQ(why_not_repeated({5, 70}, after, after, before), "");
  EXPECT_NE(why_not_repeated({5, 69}, after, after, before), "");
  EXPECT_NE(why_not_repeated({5, 70}, {{5, 72}, piece_length_bytes, 7}, after, before), "");
  EXPECT_NE(why_not_repeated({5, 70}, {{5, 71}, piece_length_bytes, 8}, after, before), "");
  EXPECT_NE(why_not_repeated({5, 70}, after, after, {{5, 70}, piece_length_bytes, 8}), "");
  EXPECT_NE(why_not_repeated({5, 70}, after, after, {{5, 70}, piece_length_bytes + 1, 7}), "");
}

}  // namespace
}  // namespace ckpt::core
