#include "client/layered_copy.hpp"

#include <future>
#include <thread>

#include "engine_fixture.hpp"
#include "kernels/digest.hpp"
#include "long_iterations.hpp"

namespace ckpt::client {
namespace {

constexpr std::size_t leaves = 100;

class LayeredCopyTest : public testing::Test {
 protected:
  static LayeredCopy layered(bool follows_plan = true) {
    return LayeredCopy({.threads = 1, .follows_plan = follows_plan, .profile_iterations = profile_iterations});
  }
  // The whole capture, by one copy thread. Returns the leaves of each layer.
  void copy_all(LayeredCopy& copy, std::size_t left = leaves) {
    while (left != 0) {
      const auto turn = copy.await_turn(left);
      ASSERT_GE(turn.leaves, 1u);
      const std::size_t taken = std::min(turn.leaves, left);
      copy.copied(turn.layer, taken, Clock::now() - std::chrono::milliseconds(1), Clock::now());
      left -= taken;
    }
  }
  void begin(LayeredCopy& copy) {
    copy.began_iteration(Clock::now());
    copy.begin(control_);
  }
  void learn(LayeredCopy& copy) {
    begin(copy);
    copy_all(copy);
    write_long_iterations(arena::CommWriter(control_->comm()));
  }
  // A capture whose plan waits for the bubble, and whose update comes before it.
  void capture_late(LayeredCopy& copy) {
    begin(copy);
    auto thread = std::async(std::launch::async, [&] { copy_all(copy); });
    while (copy.copied_bytes().layered == before_late_ &&
           thread.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    }
    before_late_ = copy.copied_bytes().layered;
    copy.hurry();
    thread.get();
    copy.end();
  }
  static constexpr std::uint64_t bytes_of(std::size_t count) { return count * kernels::leaf_size_bytes; }

  test::TemporaryDirectory directory_{test::in_memory};
  std::shared_ptr<arena::Control> control_ =
      std::make_shared<arena::Control>(arena::Control::create(directory_.path(), 0));
  std::uint64_t before_late_ = 0;
};

TEST_F(LayeredCopyTest, CopiesImmediatelyUntilAProfileIsKnown) {
  auto copy = layered();
  for (int i = 0; i < 3; ++i) {
    begin(copy);
    copy_all(copy);
  }
  EXPECT_EQ(copy.copied_bytes(), (arena::CopiedBytes{0, bytes_of(3 * leaves), 0, 0, 0}));
}

TEST_F(LayeredCopyTest, CopyWaitsForTheBubbleAndCompletesInIt) {
  auto copy = layered();
  learn(copy);
  begin(copy);
  auto thread = std::async(std::launch::async, [&] { copy_all(copy); });
  EXPECT_TRUE(copy.bubble_begin());
  thread.get();
  EXPECT_EQ(copy.copied_bytes(), (arena::CopiedBytes{bytes_of(leaves), bytes_of(leaves), 0, 1, 0}));
}

TEST_F(LayeredCopyTest, UpdateEndsTheWaitForABubbleAndIsCounted) {
  auto copy = layered();
  learn(copy);
  capture_late(copy);
  EXPECT_EQ(copy.copied_bytes(), (arena::CopiedBytes{0, bytes_of(leaves), bytes_of(leaves), 1, 1}));
}

TEST_F(LayeredCopyTest, CopiesImmediatelyOnceAfterAWrongPlan) {
  auto copy = layered();
  learn(copy);
  capture_late(copy);
  for (const int unpaced : {1, 2, 4}) {
    const std::uint64_t before = copy.copied_bytes().layered;
    for (int i = 0; i < unpaced; ++i) {
      begin(copy);
      copy_all(copy);
    }
    EXPECT_EQ(copy.copied_bytes().layered, before) << unpaced;
    capture_late(copy);
    EXPECT_EQ(copy.copied_bytes().layered, before + 1) << unpaced;
  }
}

TEST_F(LayeredCopyTest, CancelledCaptureDoesNotCountAgainstItsPlan) {
  auto copy = layered();
  learn(copy);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    begin(copy);
    auto thread = std::async(std::launch::async, [&] { return copy.await_turn(leaves); });
    while (copy.copied_bytes().layered != i) std::this_thread::yield();
    copy.hurry();  // as CopyPool::cancel() does
    thread.get();
  }
  EXPECT_EQ(copy.copied_bytes().layered_late, 0u);
}

TEST_F(LayeredCopyTest, LogKeepsTheLongestPausesBetweenManyBursts) {
  constexpr int bursts = 200, before_the_long_pause = 100;
  const std::chrono::milliseconds pause(1), long_pause(1000);
  auto copy = layered();
  begin(copy);
  arena::CommReader log(control_->comm());
  Clock::time_point at = Clock::now();
  for (int i = 0; i < bursts; ++i) {
    copy.copied(1, 1, at, at + pause);
    at += 2 * pause;
    if (i + 1 == before_the_long_pause) at += long_pause;
  }
  copy.end();
  std::vector<arena::CommEvent> events;
  ASSERT_TRUE(log.read(events));
  EXPECT_GE(events.size(), 4u);  // two for each burst
  EXPECT_LE(events.size(), 128u);
  for (std::size_t i = 0; i + 1 < events.size(); i += 2)
    EXPECT_LT(events[i + 1].at_us - events[i].at_us, 1'000'000) << "the long pause is not drawn as a copy";
}

TEST_F(LayeredCopyTest, CopiesImmediatelyAndCountsWithoutTheOption) {
  auto copy = layered(false);
  learn(copy);
  begin(copy);
  copy_all(copy, 40);
  EXPECT_TRUE(copy.bubble_begin());
  copy_all(copy, 60);
  EXPECT_EQ(copy.copied_bytes(), (arena::CopiedBytes{bytes_of(60), bytes_of(140), 0, 0, 0}));
}

TEST_F(LayeredCopyTest, LearnsAgainFromANewControlPage) {
  auto copy = layered();
  learn(copy);
  control_ = std::make_shared<arena::Control>(arena::Control::create(directory_.path(), 0));
  begin(copy);
  copy_all(copy);
  EXPECT_EQ(copy.copied_bytes().layered, 0u);
}

TEST_F(LayeredCopyTest, CountsTheOuterOfNestedBubbles) {
  auto copy = layered();
  EXPECT_FALSE(copy.bubble_end().has_value());
  EXPECT_TRUE(copy.bubble_begin());
  EXPECT_FALSE(copy.bubble_begin());
  EXPECT_EQ(copy.bubble_end(), std::optional(false));
  EXPECT_EQ(copy.bubble_end(), std::optional(true));
  EXPECT_FALSE(copy.bubble_end().has_value());
}

// The same, with a whole engine.
class LayeredEngineTest : public EngineTest {
 protected:
  LayeredEngineTest() {
    engine_ = host_engine({{"layered_capture", "true"}, {"profile_iterations", std::to_string(profile_iterations)}});
    tensors_.push_back(test_tensor("weight", CKPT_U8, {40 << 16}));
    register_all(*engine_, tensors_);
    restore(*engine_);
  }
  void snapshot(std::int64_t k) {
    tensors_[0].fill(static_cast<std::uint64_t>(k));
    ASSERT_EQ(engine_->snapshot(k).status, CKPT_OK);
    expected_ = tensors_[0].bytes;
  }
  void update(std::int64_t k) {
    ASSERT_EQ(engine_->before_update().status, CKPT_OK);
    std::fill(tensors_[0].bytes.begin(), tensors_[0].bytes.end(), std::byte{0});  // from now on nothing may be copied
    EXPECT_EQ(stored("weight", CheckpointId(1, k)), expected_);
    agent_->grant();
  }
  void learn() {
    snapshot(0);
    update(0);
    write_long_iterations(arena::CommWriter(agent_->control().comm()));
    learned_ = engine_->stats();
  }
  void wait_until_layered() const {
    while (engine_->stats().layered == 0) std::this_thread::yield();
  }

  std::vector<TestTensor> tensors_;
  std::vector<std::byte> expected_;
  ckpt_stats_t learned_ = CKPT_STATS_INIT;  // after learn(), whose capture copied at once
  std::unique_ptr<Engine> engine_;          // last: it may still copy the tensors when the test ends
};

TEST_F(LayeredEngineTest, BeforeUpdateCompletesTheCopyWithoutABubble) {
  learn();
  snapshot(1);
  wait_until_layered();
  update(1);
  const ckpt_stats_t stats = engine_->stats();
  EXPECT_EQ(stats.layered, 1u);
  EXPECT_EQ(stats.layered_late, 1u);
  EXPECT_EQ(stats.bubble_bytes, 0u);
  EXPECT_EQ(stats.update_bytes - learned_.update_bytes, 40u << 16);
  EXPECT_EQ(agent_->control().copied(), (arena::CopiedBytes{0, stats.compute_bytes, stats.update_bytes, 1, 1}));
}

TEST_F(LayeredEngineTest, CopyInABubbleIsComplete) {
  learn();
  snapshot(1);
  engine_->bubble_begin({});
  while (engine_->stats().bubble_bytes != 40u << 16) std::this_thread::yield();
  EXPECT_EQ(engine_->bubble_end({}).status, CKPT_OK);
  update(1);
  EXPECT_EQ(engine_->stats().layered_late, 0u);
  EXPECT_EQ(engine_->stats().update_bytes, learned_.update_bytes);
}

TEST_F(LayeredEngineTest, DiscardedCaptureDoesNotWaitForABubble) {
  learn();
  snapshot(1);
  wait_until_layered();
  engine_->discard();
  snapshot(2);
  update(2);
}

TEST_F(LayeredEngineTest, ClosingDoesNotWaitForABubble) {
  learn();
  snapshot(1);
  wait_until_layered();
  engine_.reset();
  EXPECT_EQ(stored("weight", CheckpointId(1, 1)), expected_);
}

TEST_F(LayeredEngineTest, SnapshotEndsAnOpenBubble) {
  engine_->bubble_begin({});
  snapshot(1);
  EXPECT_EQ(engine_->bubble_end({}).status, CKPT_ERR_INVALID);
}

TEST_F(LayeredEngineTest, RefusesAnEndWithoutABegin) {
  const Outcome outcome = engine_->bubble_end({});
  EXPECT_EQ(outcome.status, CKPT_ERR_INVALID);
  EXPECT_NE(std::string(outcome.text).find("bubble_begin()"), std::string::npos);
}

}  // namespace
}  // namespace ckpt::client
