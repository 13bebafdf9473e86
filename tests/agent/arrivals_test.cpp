// What a rank that waits for its state is told of the pieces that arrive: each piece once, and none in vain.
#include "agent/trainers/arrivals.hpp"

#include <gtest/gtest.h>

namespace ckpt::agent {
namespace {

using core::SlotRef;

const CheckpointId newest(3, 7), older(3, 6);
const SlotRef main_slot{core::held_rank, "rank0", 0}, private_slot{core::held_rank, "rank0.private", 1};

class ArrivalsTest : public ::testing::Test {
 protected:
  // What rank 0 is told if these slots are being filled, and these are whole. Whole ones have a "+".
  std::string told(const std::vector<SlotRef>& filling, const std::vector<SlotRef>& whole,
                   CheckpointId checkpoint = newest) {
    std::string text;
    for (const auto& news : arrivals_.tell(0, {4, checkpoint, filling, whole}))
      text += news.slot.shard + (news.is_whole ? "+ " : " ");
    return text;
  }
  Arrivals arrivals_;
};

TEST_F(ArrivalsTest, ReportsEachPieceOnce) {
  arrivals_.began(main_slot, {1, newest});
  EXPECT_EQ(told({main_slot, private_slot}, {}), "rank0 ") << "the other fetch has not begun";
  arrivals_.began(private_slot, {2, newest});
  EXPECT_EQ(told({main_slot, private_slot}, {}), "rank0.private ");
  EXPECT_EQ(told({main_slot, private_slot}, {}), "");
}

TEST_F(ArrivalsTest, ReportsAPieceFetchedBetweenTwoQueriesAsComplete) {
  arrivals_.began(main_slot, {1, newest});
  EXPECT_EQ(told({main_slot}, {}), "rank0 ");
  arrivals_.began(private_slot, {2, newest});
  arrivals_.ended(2);
  EXPECT_EQ(told({main_slot}, {private_slot}), "rank0.private+ ");
  EXPECT_EQ(told({main_slot}, {private_slot}), "");
}

TEST_F(ArrivalsTest, DoesNotReportAnArrivingPieceAgainWhenComplete) {
  arrivals_.began(main_slot, {1, newest});
  arrivals_.began(private_slot, {2, newest});
  EXPECT_EQ(told({main_slot, private_slot}, {}), "rank0 rank0.private ");
  arrivals_.ended(2);
  EXPECT_EQ(told({main_slot}, {private_slot}), "");
}

TEST_F(ArrivalsTest, ReportsARestartedFetchAgain) {
  arrivals_.began(main_slot, {1, newest});
  EXPECT_EQ(told({main_slot}, {}), "rank0 ");
  arrivals_.ended(1);
  arrivals_.began(main_slot, {2, newest});
  EXPECT_EQ(told({main_slot}, {}), "rank0 ");
}

TEST_F(ArrivalsTest, ReportsACompletePieceOfAnotherCheckpointInTheSameSlot) {
  arrivals_.began(main_slot, {1, newest});
  EXPECT_EQ(told({main_slot}, {private_slot}), "rank0 rank0.private+ ");
  arrivals_.began(main_slot, {2, older});
  EXPECT_EQ(told({main_slot}, {private_slot}, older), "rank0 rank0.private+ ");
}

TEST_F(ArrivalsTest, ReportsNothingUnlessAPieceIsArriving) {
  EXPECT_EQ(told({}, {main_slot, private_slot}), "") << "the rank gets its state at once";
  arrivals_.began(main_slot, {1, newest});
  EXPECT_EQ(told({main_slot}, {private_slot}), "rank0 rank0.private+ ");
}

TEST_F(ArrivalsTest, ReportsEverythingAgainAfterForgettingARank) {
  arrivals_.began(main_slot, {1, newest});
  EXPECT_EQ(told({main_slot}, {private_slot}), "rank0 rank0.private+ ");
  arrivals_.forget(0);
  EXPECT_EQ(told({main_slot}, {private_slot}), "rank0 rank0.private+ ");
}

}  // namespace
}  // namespace ckpt::agent
