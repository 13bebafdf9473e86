#include "agent/pieces/piece_index.hpp"

#include <gtest/gtest.h>

#include "support.hpp"

namespace ckpt::agent {
namespace {

using core::held_rank;
using core::SlotRef;
using testing::make_piece;

class PieceIndexTest : public ::testing::Test {
 protected:
  void add(const SlotRef& slot, CheckpointId checkpoint) {
    const auto piece = make_piece(slot.shard, checkpoint, 1000);
    write_piece(segment_->writable_slot(slot.slot), piece);
    index_.add(slot, segment_, piece.manifest);
  }
  auto count_release() {
    return [this] { ++released_; };
  }

  test::TemporaryDirectory directory_{test::in_memory};
  arena::NodeArena arena_{directory_.path() + "/node", "job", "node"};
  std::shared_ptr<arena::Segment> segment_ =
      std::make_shared<arena::Segment>(arena_.create_segment(testing::segment_spec(held_rank, "s", 1000), 1));
  PieceIndex index_;
  int released_ = 0;
  const SlotRef slot_{held_rank, "s", 1};
};

TEST_F(PieceIndexTest, FindsByNameAndBySlot) {
  EXPECT_EQ(index_.find("s", {1, 5}), nullptr);
  add(slot_, {1, 5});
  const Pin piece = index_.find("s", {1, 5});
  ASSERT_NE(piece, nullptr);
  EXPECT_EQ(piece->slot(), slot_);
  EXPECT_EQ(index_.find(slot_), piece);
  EXPECT_EQ(index_.find("s", {1, 6}), nullptr);
  EXPECT_EQ(index_.find("t", {1, 5}), nullptr);
  EXPECT_EQ(arena::decode_manifest(piece->encoded_manifest()), piece->manifest());
}

TEST_F(PieceIndexTest, ReleasesADroppedSlotWithoutReadersImmediately) {
  add(slot_, {1, 5});
  index_.drop(slot_, count_release());
  EXPECT_EQ(released_, 1);
  EXPECT_EQ(index_.find(slot_), nullptr);
}

TEST_F(PieceIndexTest, ReleasesADroppedSlotAfterItsLastReader) {
  add(slot_, {1, 5});
  Pin one = index_.find(slot_), two = index_.find("s", {1, 5});
  index_.drop(slot_, count_release());
  EXPECT_EQ(index_.find("s", {1, 5}), nullptr) << "a dropped piece is given to nobody new";
  one.reset();
  EXPECT_EQ(released_, 0);
  two.reset();
  EXPECT_EQ(released_, 1);
}

TEST_F(PieceIndexTest, ReleasesAnEmptySlotImmediately) {
  index_.drop(slot_, count_release());
  EXPECT_EQ(released_, 1);
}

TEST_F(PieceIndexTest, APinKeepsTheBytesMappedWhenTheSegmentIsGone) {
  add(slot_, {1, 5});
  const Pin pin = index_.find(slot_);
  index_.drop(slot_, [] {});
  segment_.reset();
  const auto expected = make_piece("s", {1, 5}, 1000).data;
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), pin->data()));
}

}  // namespace
}  // namespace ckpt::agent
