#include "client/update_gate.hpp"

#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "client/halt_watch.hpp"
#include "tests/support/temporary_directory.hpp"

namespace ckpt::client {
namespace {

using State = UpdateGate::State;

TEST(UpdateGate, AnUpdateBeginsOnlyWhileTheGateIsOpen) {
  UpdateGate gate;
  EXPECT_TRUE(gate.begin_update());
  EXPECT_FALSE(gate.hold()) << "the tensors change";
  EXPECT_FALSE(gate.freeze()) << "the tensors change";
  gate.rest(3, true);
  EXPECT_TRUE(gate.hold());
  EXPECT_FALSE(gate.begin_update());
  EXPECT_TRUE(gate.pass());
  EXPECT_TRUE(gate.begin_update());
  gate.rest(4, true);
  EXPECT_TRUE(gate.freeze());
  EXPECT_FALSE(gate.freeze()) << "one thread captures";
  EXPECT_FALSE(gate.pass()) << "a freeze is for good";
  gate.end(true);
  EXPECT_EQ(gate.state(), State::over);
  EXPECT_FALSE(gate.begin_update());
  EXPECT_EQ(gate.iteration(), 4);
}

TEST(UpdateGate, HoldsARankAtRestFromTheGivenIterationOn) {
  UpdateGate gate;
  gate.hold_from(4);
  gate.rest(3, true);
  EXPECT_TRUE(gate.begin_update());
  gate.rest(4, true);
  EXPECT_EQ(gate.state(), State::held);
  EXPECT_FALSE(gate.begin_update());
}

TEST(UpdateGate, CancelledUpdateLeavesTheRankAtRest) {
  UpdateGate gate;
  gate.rest(3, true);
  ASSERT_TRUE(gate.begin_update());
  gate.rest_again();
  EXPECT_EQ(gate.state(), State::resting);
  EXPECT_EQ(gate.iteration(), 3);
  EXPECT_TRUE(gate.is_kept());
}

// Whatever the moment of the freeze: what is frozen is one iteration, whole, and stays so.
TEST(UpdateGate, FreezeAtAnyMomentFindsStableTensorsOfOneIteration) {
  constexpr int rounds = 200;
  for (int round = 0; round < rounds; ++round) {
    UpdateGate gate;
    // Plain memory: under ThreadSanitizer the gate alone has to order its changes.
    std::array<std::int64_t, 64> tensor{};
    gate.rest(0, true);
    std::thread training([&] {
      for (std::int64_t iteration = 1;; ++iteration) {
        if (!gate.begin_update()) return;
        for (std::int64_t& element : tensor) element = iteration;
        gate.rest(iteration, true);
      }
    });
    for (int spin = 0; spin < round; ++spin) std::this_thread::yield();
    while (!gate.freeze()) {
    }
    for (int look = 0; look < 3; ++look) {
      for (const std::int64_t element : tensor) ASSERT_EQ(element, gate.iteration());
    }
    gate.end(true);
    training.join();
    for (const std::int64_t element : tensor) ASSERT_EQ(element, gate.iteration());
  }
}

// A watch without a thread, and the agent's and the trainer's page.
class HaltWatchTest : public testing::Test {
 protected:
  HaltWatchTest() : control_(arena::Control::create(directory_.path(), 0)) {}

  void look(std::int64_t after_ms = 0) { watch_.look(control_, begin_ + std::chrono::milliseconds(after_ms)); }
  void expect_answer(FreezeState state, std::int64_t iteration) {
    EXPECT_EQ(control_.freeze(), (arena::FreezeWords{7, static_cast<std::uint8_t>(state), iteration}));
  }

  test::TemporaryDirectory directory_{test::in_memory};
  arena::Control control_;
  const Clock::time_point begin_ = Clock::now();
  UpdateGate gate_;
  bool can_capture_ = true;
  int captures_ = 0;
  HaltWatch watch_{gate_,
                   {},
                   {[] { return nullptr; },
                    [this] {
                      EXPECT_EQ(gate_.state(), State::frozen);
                      ++captures_;
                      return can_capture_;
                    }}};
};

TEST_F(HaltWatchTest, HoldsNothingWithoutAHalt) {
  gate_.rest(40, true);
  look();
  EXPECT_EQ(gate_.state(), State::resting);
  EXPECT_EQ(control_.freeze(), arena::FreezeWords());
}

TEST_F(HaltWatchTest, HoldsARankAtRestUntilTheDecisionAndCapturesIt) {
  gate_.rest(40, true);
  control_.halt({7, std::nullopt});
  look();
  EXPECT_EQ(gate_.state(), State::held);
  expect_answer(FreezeState::held, 40);
  look(5000);
  EXPECT_EQ(captures_, 0);
  control_.halt({7, 40});
  look(5001);
  EXPECT_EQ(gate_.state(), State::over);
  expect_answer(FreezeState::captured, 40);
  look(5002);
  EXPECT_EQ(captures_, 1);
}

TEST_F(HaltWatchTest, HoldsARankInAnUpdateOnceItEnds) {
  control_.halt({7, std::nullopt});
  gate_.rest(40, true);
  ASSERT_TRUE(gate_.begin_update());
  look();
  expect_answer(FreezeState::updating, 40);
  gate_.rest(41, true);
  look();
  expect_answer(FreezeState::held, 41);
}

TEST_F(HaltWatchTest, LaggingRankDoesOneMoreUpdate) {
  gate_.rest(40, true);
  control_.halt({7, std::nullopt});
  look();
  control_.halt({7, 41});
  look();
  expect_answer(FreezeState::updating, 40);
  ASSERT_TRUE(gate_.begin_update());
  gate_.rest(41, true);
  look();
  expect_answer(FreezeState::captured, 41);
}

TEST_F(HaltWatchTest, LaggingRankDoesNotPassTheDecidedIteration) {
  gate_.rest(40, true);
  control_.halt({7, std::nullopt});
  look();
  control_.halt({7, 42});
  look();
  ASSERT_TRUE(gate_.begin_update());
  gate_.rest(41, true);
  ASSERT_TRUE(gate_.begin_update()) << "it is still behind";
  gate_.rest(42, true);
  EXPECT_FALSE(gate_.begin_update()) << "even before the watch looks again";
  look();
  expect_answer(FreezeState::captured, 42);
}

TEST_F(HaltWatchTest, RankInAnUpdateBeginsNoOtherUpdateAfterAHalt) {
  gate_.rest(40, true);
  ASSERT_TRUE(gate_.begin_update());
  control_.halt({7, std::nullopt});
  look();
  gate_.rest(41, true);
  EXPECT_FALSE(gate_.begin_update()) << "even before the watch looks again";
}

TEST_F(HaltWatchTest, CaptureByClosingTheEngineAnswersTheHalt) {
  gate_.rest(40, true);
  ASSERT_TRUE(gate_.freeze());
  control_.halt({7, std::nullopt});
  look();
  expect_answer(FreezeState::capturing, 40);
  gate_.end(true);
  look();
  expect_answer(FreezeState::captured, 40);
  EXPECT_EQ(captures_, 0);
}

TEST_F(HaltWatchTest, ClosingTheEngineWithinAnUpdateRefusesTheHalt) {
  gate_.rest(40, true);
  ASSERT_TRUE(gate_.begin_update());
  ASSERT_TRUE(gate_.abandon());
  control_.halt({7, std::nullopt});
  look();
  expect_answer(FreezeState::refused, 40);
}

TEST_F(HaltWatchTest, RankThatLagsTooLongFreezesAtItsIteration) {
  gate_.rest(40, true);
  control_.halt({7, 41});
  look();
  expect_answer(FreezeState::updating, 40);
  look(10'000);
  expect_answer(FreezeState::captured, 40);
}

TEST_F(HaltWatchTest, RankWithoutADecisionFreezesAtItsIteration) {
  gate_.rest(40, true);
  control_.halt({7, std::nullopt});
  look();
  look(10'000);
  expect_answer(FreezeState::captured, 40);
}

TEST_F(HaltWatchTest, ReportsARankThatCannotBeCaptured) {
  gate_.rest(40, true);
  can_capture_ = false;
  control_.halt({7, 40});
  look();
  expect_answer(FreezeState::refused, 40);
  EXPECT_EQ(gate_.state(), State::over);
}

TEST_F(HaltWatchTest, EachChangeRingsTheAgentsDoorbellOnce) {
  gate_.rest(40, true);
  control_.halt({7, std::nullopt});
  const auto before = control_.trainer_doorbell();
  look();
  look(1);
  look(2);
  EXPECT_EQ(control_.trainer_doorbell(), before + 1);
}

}  // namespace
}  // namespace ckpt::client
