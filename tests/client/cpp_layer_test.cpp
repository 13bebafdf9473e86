// The C++ layer over an engine that runs. A file of its own: the engine's own Options have the same name.

#include <gtest/gtest.h>

#include "arena/comm_log.hpp"
#include "ckptengine/engine.hpp"
#include "fake_agent.hpp"
#include "tests/support/temporary_directory.hpp"

namespace {

class CppLayer : public testing::Test {
 protected:
  const ckpt::test::TemporaryDirectory directory_{ckpt::test::in_memory};
  ckpt::client::FakeAgent agent_{directory_.path()};
  ckpt::Engine engine_{ckpt::Options()
                           .set("job", "job")
                           .set("rank", 0)
                           .set("world_size", 1)
                           .set("node", "node")
                           .set("agent", "attach")
                           .set("arena_dir", directory_.path())};
};

TEST_F(CppLayer, CommunicationEndsWithItsScope) {
  { const ckpt::Communication before_restore(engine_); }
  EXPECT_FALSE(engine_.restore().found);
  const ckpt::arena::CommWords& words = agent_.control().comm();
  EXPECT_EQ(words.written, 0u);
  {
    const ckpt::Communication first(engine_);
    const ckpt::Communication second(engine_, 4);
    EXPECT_EQ(words.channels[0].begun - words.channels[0].ended, 1u);
    EXPECT_EQ(words.channels[4].begun - words.channels[4].ended, 1u);
  }
  EXPECT_FALSE(ckpt::arena::CommReader(words).is_busy());
  engine_.comm_begin(4);
  EXPECT_TRUE(ckpt::arena::CommReader(words).is_busy());
  engine_.comm_end(4);
  EXPECT_EQ(words.written, 6u);
  EXPECT_THROW(engine_.comm_end(4), ckpt::Error);
  EXPECT_THROW({ const ckpt::Communication out_of_range(engine_, 8); }, ckpt::Error);
  EXPECT_EQ(words.written, 6u);
}

TEST_F(CppLayer, PauseEndsWithItsScope) {
  { const ckpt::Pause before_restore(engine_, "nobody hears of it"); }
  EXPECT_FALSE(engine_.restore().found);
  const ckpt::arena::CommReader words(agent_.control().comm());
  EXPECT_EQ(words.paused(), std::nullopt);
  {
    const ckpt::Pause pause(engine_, "eval");
    EXPECT_EQ(words.paused(), "eval");
  }
  EXPECT_EQ(words.paused(), std::nullopt);
  EXPECT_THROW(engine_.resume(), ckpt::Error);
  EXPECT_THROW(engine_.pause(nullptr), ckpt::Error);
  EXPECT_EQ(words.paused(), std::nullopt);
}

class HaltedCppLayer : public CppLayer {
 protected:
  ckpt::Engine halting_{ckpt::Options()
                            .set("job", "job")
                            .set("rank", 0)
                            .set("world_size", 1)
                            .set("node", "node")
                            .set("agent", "attach")
                            .set("on_suspicion", "halt")
                            .set("arena_dir", directory_.path())};
};

TEST_F(HaltedCppLayer, AHaltedEngineRejoinsAndRestoresAgain) {
  EXPECT_THROW(static_cast<void>(engine_.wait_halt(std::chrono::seconds(1))), ckpt::Error) << "on_suspicion=report";
  std::int64_t weight = 5;
  halting_.register_tensor("weight", &weight, CKPT_I64, {});
  EXPECT_FALSE(halting_.restore().found);
  halting_.before_update();
  weight = 6;
  halting_.snapshot(0);
  halting_.report_trouble("a connection was closed");
  EXPECT_EQ(halting_.wait_halt(std::chrono::milliseconds(0)), std::nullopt);
  EXPECT_THROW(halting_.rejoin(), ckpt::Error) << "it is not halted";
  agent_.control().halt({1, 0});
  const auto halt = halting_.wait_halt(std::chrono::seconds(20));
  ASSERT_TRUE(halt);
  EXPECT_EQ(halt->struct_size, sizeof(ckpt_halt_t));
  EXPECT_EQ(halt->captured, 1);
  EXPECT_EQ(halt->iteration, 0);
  EXPECT_NE(halt->text[0], 0);
  halting_.rejoin();
  const ckpt::Restored again = halting_.restore();
  EXPECT_EQ(again.main_tier, CKPT_TIER_LIVE);
  EXPECT_EQ(again.next_iteration, 1);
  EXPECT_EQ(weight, 6);
}

TEST_F(CppLayer, SkippedSnapshotReturnsAFalseResultWithAReason) {
  std::int64_t weight = 5;
  engine_.register_tensor("weight", &weight, CKPT_I64, {});
  const ckpt::Restored start = engine_.restore();
  EXPECT_EQ(start.message, "");
  const ckpt::Ticket taken = engine_.snapshot(start.next_iteration);
  EXPECT_TRUE(taken) << taken.message();
  EXPECT_EQ(taken.message(), "");
  EXPECT_TRUE(engine_.before_update());
  EXPECT_TRUE(taken.wait(CKPT_STAGE_CAPTURED, std::chrono::seconds(20)));
  EXPECT_EQ(taken.stage(), CKPT_STAGE_CAPTURED);
  EXPECT_TRUE(engine_.snapshot(1));
  const ckpt::Result skipped = engine_.before_update();
  EXPECT_FALSE(skipped);
  EXPECT_FALSE(skipped.is_error());
  EXPECT_EQ(skipped.status(), CKPT_SKIPPED);
  EXPECT_NE(skipped.message(), "");
  const ckpt::Result late = taken.wait(CKPT_STAGE_COMMITTED, std::chrono::milliseconds(1));
  EXPECT_TRUE(late.is_error());
  EXPECT_NE(late.message(), "");
}

}  // namespace
