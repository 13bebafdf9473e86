#include "schedule/device_profile.hpp"

#include <gtest/gtest.h>

namespace ckpt::schedule {
namespace {

using MarkKind = DeviceMark::Kind;

constexpr std::uint32_t iterations_learned = 4;

// Training with iterations of 1 s. The device idles from 0.2 to 0.3 and from 0.5 to 0.9, and the update is at 0.95.
class DeviceProfileTest : public testing::Test {
 protected:
  void mark(MarkKind kind, double at_s) { profiler_.observe({kind, began_s_ + at_s}); }
  void iterate(double second_bubble_s = 0.4) {
    mark(MarkKind::iteration, 0);
    mark(MarkKind::bubble_begin, 0.2);
    mark(MarkKind::bubble_end, 0.3);
    mark(MarkKind::bubble_begin, 0.5);
    mark(MarkKind::bubble_end, 0.5 + second_bubble_s);
    mark(MarkKind::update, 0.95);
    began_s_ += 1;
  }
  void learn() {
    for (std::uint32_t i = 0; i < iterations_learned; ++i) iterate();
  }

  DeviceProfiler profiler_{{.iterations = iterations_learned, .window = 3}};
  double began_s_ = 100;
};

TEST_F(DeviceProfileTest, IsUnknownBeforeEnoughIterations) {
  for (std::uint32_t i = 1; i < iterations_learned; ++i) iterate();
  EXPECT_EQ(profiler_.profile().iterations, 0u);
  EXPECT_EQ(profiler_.profile().bubbles(), 0u);
}

TEST_F(DeviceProfileTest, LearnsWhenTheDeviceIdlesBeforeTheUpdate) {
  learn();
  const DeviceProfile& profile = profiler_.profile();
  EXPECT_EQ(profile.iterations, iterations_learned);
  EXPECT_NEAR(profile.stretch_s, 0.95, 1e-9);
  EXPECT_NEAR(profile.bubble_s(), 0.5, 1e-9);
  ASSERT_EQ(profile.bubbles(), 2u);
  const double lengths_s[] = {0.2, 0.1, 0.2, 0.4, 0.05};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(profile.spans[i].length_s, lengths_s[i], 1e-9) << i;
    EXPECT_EQ(profile.spans[i].activity, i % 2 == 0 ? DeviceActivity::compute : DeviceActivity::bubble) << i;
  }
}

TEST_F(DeviceProfileTest, IgnoresBubblesAfterTheUpdate) {
  for (std::uint32_t i = 0; i < iterations_learned; ++i) {
    iterate();
    mark(MarkKind::bubble_begin, -0.04);  // iterate() has moved on to the next second
    mark(MarkKind::bubble_end, -0.01);
    mark(MarkKind::update, -0.005);
  }
  EXPECT_EQ(profiler_.profile().bubbles(), 2u);
  EXPECT_NEAR(profiler_.profile().stretch_s, 0.95, 1e-9);
}

TEST_F(DeviceProfileTest, IgnoresAnIterationWithLostMarks) {
  for (std::uint32_t i = 1; i < iterations_learned; ++i) iterate();
  mark(MarkKind::iteration, 0);
  profiler_.lost_marks();
  mark(MarkKind::update, 0.5);
  EXPECT_EQ(profiler_.profile().iterations, 0u);
  began_s_ += 1;
  iterate();
  EXPECT_NEAR(profiler_.profile().stretch_s, 0.95, 1e-9);
}

TEST_F(DeviceProfileTest, LearnsChangedBubblesAgain) {
  learn();
  for (int i = 0; i < 3; ++i) iterate(0.1);
  EXPECT_EQ(profiler_.relearned(), 1u);
  EXPECT_NEAR(profiler_.profile().bubble_s(), 0.5, 1e-9) << "the old profile serves until the new one is learned";
  for (std::uint32_t i = 0; i < iterations_learned; ++i) iterate(0.1);
  EXPECT_NEAR(profiler_.profile().bubble_s(), 0.2, 1e-9);
}

TEST_F(DeviceProfileTest, UsesTheShortestOfTheLastStretches) {
  const auto iterate = [this](double update_s) {
    mark(MarkKind::iteration, 0);
    mark(MarkKind::update, update_s);
    began_s_ += 1;
  };
  for (std::uint32_t i = 0; i < iterations_learned; ++i) iterate(0.5);
  iterate(0.45);
  EXPECT_NEAR(profiler_.profile().stretch_s, 0.45, 1e-9);
  for (int i = 0; i < 8; ++i) iterate(0.5);
  EXPECT_NEAR(profiler_.profile().stretch_s, 0.5, 1e-9);
}

TEST_F(DeviceProfileTest, ProfilesTrainingWithoutBubbles) {
  for (std::uint32_t i = 0; i < iterations_learned; ++i) {
    mark(MarkKind::iteration, 0);
    mark(MarkKind::update, 0.5);
    began_s_ += 1;
  }
  EXPECT_EQ(profiler_.profile().iterations, iterations_learned);
  EXPECT_EQ(profiler_.profile().bubbles(), 0u);
  EXPECT_NEAR(profiler_.profile().stretch_s, 0.5, 1e-9);
}

TEST_F(DeviceProfileTest, IgnoresLoopsThatNeverAnnounceAnUpdate) {
  for (std::uint32_t i = 0; i < 3 * iterations_learned; ++i) {
    mark(MarkKind::iteration, 0);
    mark(MarkKind::bubble_begin, 0.1);
    mark(MarkKind::bubble_end, 0.2);
    began_s_ += 1;
  }
  EXPECT_EQ(profiler_.profile().iterations, 0u);
}

}  // namespace
}  // namespace ckpt::schedule
