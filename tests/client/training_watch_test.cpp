#include "client/training_watch.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/temporary_directory.hpp"

namespace ckpt::client {
namespace {

using schedule::NetworkState;

constexpr std::uint32_t profile_iterations = 3;

// A trainer whose iterations of 100 ms communicate from 20 to 60 ms.
class TrainingWatchTest : public testing::Test {
 protected:
  Clock::time_point at(int ms) const { return began_ + std::chrono::milliseconds(ms); }
  void iterate(int count) {
    for (int i = 0; i < count; ++i) {
      writer_.begin(0, at(20));
      writer_.end(0, at(60));
      began_ = at(100);
      writer_.iteration(began_);
    }
  }

  test::TemporaryDirectory directory_{test::in_memory};
  std::shared_ptr<arena::Control> control_ =
      std::make_shared<arena::Control>(arena::Control::create(directory_.path(), 0));
  arena::CommWriter writer_{control_->comm()};
  TrainingWatch watch_{control_, profile_iterations};
  Clock::time_point began_ = Clock::time_point(std::chrono::hours(1));
};

TEST_F(TrainingWatchTest, NetworkIsFreeWithoutMarks) {
  const schedule::Training seen = watch_.look(at(0));
  EXPECT_EQ(seen.idle_forecast.state, NetworkState::free);
  EXPECT_TRUE(std::isinf(seen.longest_idle_s));
}

TEST_F(TrainingWatchTest, SeesBeginAndEndOfACommunicationImmediately) {
  writer_.begin(0, at(0));
  EXPECT_EQ(watch_.look(at(1)).idle_forecast.state, NetworkState::busy);
  writer_.end(0, at(2));
  EXPECT_EQ(watch_.look(at(3)).idle_forecast.state, NetworkState::idle);
}

TEST_F(TrainingWatchTest, LearnsIdleTimesFromIterations) {
  writer_.iteration(began_);
  iterate(1);
  EXPECT_TRUE(std::isinf(watch_.look(at(1)).idle_forecast.idle_s)) << "nothing is known yet";
  iterate(profile_iterations + 2);
  writer_.begin(0, at(20));
  writer_.end(0, at(60));
  const schedule::Training seen = watch_.look(at(70));
  EXPECT_EQ(seen.idle_forecast.state, NetworkState::idle);
  EXPECT_NEAR(seen.idle_forecast.idle_s, 0.9 * 0.060 - 0.010, 1e-3) << "until the next iteration communicates";
  EXPECT_NEAR(seen.longest_idle_s, 0.9 * 0.060, 1e-3);
}

TEST_F(TrainingWatchTest, MissedMarksCostAtMostOneIteration) {
  iterate(2 * arena::comm_events_max);
  watch_.look(at(0));
  iterate(profile_iterations + 3);
  EXPECT_NEAR(watch_.look(at(0)).longest_idle_s, 0.9 * 0.060, 1e-3);
}

}  // namespace
}  // namespace ckpt::client
