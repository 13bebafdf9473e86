#include "schedule/step_pacer.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace ckpt::schedule {
namespace {

constexpr std::uint64_t grain_bytes = 10, chunk_bytes_max = 1000;
constexpr std::uint32_t buffers = 4;
constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr std::uint64_t all = 100;  // steps
constexpr std::uint64_t all_bytes = 1'000'000;

Training idle(double idle_s, double longest_idle_s = infinite) {
  return {{NetworkState::idle, idle_s}, longest_idle_s};
}
Training busy() { return {{NetworkState::busy, 0}, infinite}; }

// On a GPU of which steps take startup_s, all that leave together, and a second for a hundred bytes of a chunk.
class StepPacerTest : public testing::Test {
 protected:
  static constexpr double startup_s = 0.5, bytes_per_s = 100;

  // All members promise `steps` at once; they arrive.
  void go(std::uint64_t steps, std::uint64_t chunk_bytes) {
    pacer_.allowed(now_s_, steps);
    now_s_ += startup_s + static_cast<double>((steps - received_) * chunk_bytes) / bytes_per_s;
    pacer_.received(now_s_, received_ = steps);
  }
  void begin(std::uint64_t chunk_bytes, std::uint64_t longest_bytes = all_bytes) {
    pacer_.begin(chunk_bytes, longest_bytes);
    received_ = 0;
  }
  void learn() {
    for (const std::uint64_t steps : {1, 2, 3, 4, 1, 2, 3, 4}) {
      begin(100);
      go(steps, 100);
    }
    begin(100);
  }

  StepPacer pacer_{grain_bytes, chunk_bytes_max, buffers};
  double now_s_ = 1000;
  std::uint64_t received_ = 0;
};

TEST_F(StepPacerTest, PromisesAllReadyStepsWithoutAForecast) {
  pacer_.begin(100, all_bytes);
  EXPECT_EQ(pacer_.promise(7, {}), 7u);
  EXPECT_EQ(pacer_.promise(9, {}), 9u);
}

TEST_F(StepPacerTest, PromisesNothingDuringCommunicationOrAfterTheSpan) {
  pacer_.begin(100, all_bytes);
  EXPECT_EQ(pacer_.promise(all, busy()), 0u);
  EXPECT_EQ(pacer_.promise(all, idle(0)), 0u);
  learn();
  EXPECT_EQ(pacer_.promise(all, busy()), 0u);
  EXPECT_EQ(pacer_.promise(all, idle(0)), 0u);
}

TEST_F(StepPacerTest, NeverRevokesAPromise) {
  pacer_.begin(100, all_bytes);
  EXPECT_EQ(pacer_.promise(7, {}), 7u);
  EXPECT_EQ(pacer_.promise(7, busy()), 7u);
  EXPECT_EQ(pacer_.promise(9, idle(1e-9)), 7u);
}

TEST_F(StepPacerTest, PromisesSingleStepsUntilItKnowsTheirTime) {
  begin(100);
  for (std::uint64_t step = 1; step <= 4; ++step) {
    EXPECT_EQ(pacer_.promise(all, idle(1e-9)), step);
    EXPECT_EQ(pacer_.promise(all, idle(1e-9)), step) << "before that has arrived";
    go(step, 100);
  }
}

TEST_F(StepPacerTest, PromisesStepsThatFitTheSpanBesideOngoingOnes) {
  learn();
  EXPECT_EQ(pacer_.promise(all, idle(startup_s + 3.01)), 3u);
  EXPECT_EQ(pacer_.promise(all, idle(startup_s + 3.01)), 3u) << "these have not arrived";
  EXPECT_EQ(pacer_.promise(all, idle(startup_s + 5.01)), 5u);
  pacer_.allowed(now_s_, 5);
  pacer_.received(now_s_ + 4, 4);
  EXPECT_EQ(pacer_.promise(all, idle(startup_s + 1.01)), 5u);
  EXPECT_EQ(pacer_.promise(all, idle(startup_s + 2.01)), 6u);
  EXPECT_EQ(pacer_.promise(8, idle(infinite)), 8u);
}

// So what steps take stays known where the network has become faster.
TEST_F(StepPacerTest, PromisesTheFirstStepInAnyIdleMoment) {
  learn();
  EXPECT_EQ(pacer_.promise(all, idle(1e-9)), 1u);
  go(1, 100);
  EXPECT_EQ(pacer_.promise(all, idle(1e-9)), 1u);
}

TEST_F(StepPacerTest, SizesChunksSoThatOngoingStepsFitTheLongestSpan) {
  EXPECT_EQ(pacer_.chunk_bytes(idle(0, 1)), chunk_bytes_max) << "nothing is known of the link";
  learn();
  EXPECT_EQ(pacer_.chunk_bytes(idle(0, startup_s + 4.05)), 100u);
  EXPECT_EQ(pacer_.chunk_bytes(idle(0, startup_s + 3.99)), 90u) << "whole grains";
  EXPECT_EQ(pacer_.chunk_bytes(idle(0, 1e-3)), grain_bytes);
  EXPECT_EQ(pacer_.chunk_bytes(idle(0, infinite)), chunk_bytes_max);
}

TEST_F(StepPacerTest, CountsAPiecesShortLastChunk) {
  learn();
  const std::uint64_t before = pacer_.chunk_bytes(idle(0, 10));
  for (int i = 0; i < 20; ++i) {
    begin(100, 110);
    pacer_.allowed(now_s_, 2);
    now_s_ += startup_s + 1.1;
    pacer_.received(now_s_, 2);
  }
  EXPECT_EQ(pacer_.chunk_bytes(idle(0, 10)), before);
}

TEST_F(StepPacerTest, SingleSlowStepChangesLittle) {
  learn();
  const auto fits = [&] { return pacer_.promise(all, idle(startup_s + 3.01)); };
  pacer_.allowed(now_s_, 1);
  pacer_.received(now_s_ + 1000, 1);
  begin(100);
  EXPECT_GE(fits(), 2u);
  for (int i = 0; i < 100; ++i) {
    begin(100);
    pacer_.allowed(now_s_, 1);
    pacer_.received(now_s_ + 1000, 1);
  }
  begin(100);
  EXPECT_EQ(fits(), 1u) << "where it is the network that is so slow";
}

// What was promised while others were under way takes until these are through as well, which says nothing of steps.
TEST_F(StepPacerTest, LearnsOnlyFromStepsSentAlone) {
  learn();
  const std::uint64_t before = pacer_.chunk_bytes(idle(0, 10));
  for (int i = 0; i < 20; ++i) {
    begin(100);
    pacer_.allowed(now_s_, 1);
    pacer_.allowed(now_s_, 2);
    now_s_ += startup_s + 1;
    pacer_.received(now_s_, 1);
    now_s_ += 1000;
    pacer_.received(now_s_, 2);
  }
  EXPECT_EQ(pacer_.chunk_bytes(idle(0, 10)), before);
}

}  // namespace
}  // namespace ckpt::schedule
