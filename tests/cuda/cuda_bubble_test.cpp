// Bubbles on the GPU's timeline, and captures that are copied in them.
#include <atomic>
#include <deque>
#include <functional>
#include <future>

#include "../client/long_iterations.hpp"
#include "cuda_engine_fixture.hpp"
#include "kernels/digest.hpp"

namespace ckpt::client {
namespace {

using arena::CommKind;

// Training's work on the GPU does nothing, and does not end while a test holds it.
class GpuBubbleTest : public HeldCudaEngineTest {
 protected:
  void SetUp() override {
    HeldCudaEngineTest::SetUp();
    if (IsSkipped()) return;
    engine_ = engine<device::AutoDevice>(
        {{"layered_capture", "true"}, {"profile_iterations", std::to_string(profile_iterations)}}, 1u, staging_bytes);
    add(*engine_, "weights", *weights_, CKPT_OVERLAPPED);
    add(*engine_, "statistics", *statistics_, CKPT_SYNCHRONOUS);
    restore(*engine_);
    reader_.emplace(agent_->control().comm());
  }
  void TearDown() override {
    hold(false);
    if (stream_) cuStreamSynchronize(stream());
    if (buttons().reset != nullptr) buttons().reset();
    engine_.reset();
    HeldCudaEngineTest::TearDown();
  }
  void hold(bool held) { allowed_ = held ? works_.size() : SIZE_MAX; }
  void let(std::size_t count) { allowed_ += count; }
  void work(CUstream on) {
    works_.emplace_back([this, number = works_.size()] { EXPECT_TRUE(eventually([&] { return allowed_ > number; })); });
    EXPECT_CUDA(cuLaunchHostFunc(
        on, [](void* work) { (*static_cast<std::function<void()>*>(work))(); }, &works_.back()));
  }
  void wait_in_bubble(CUstream on) {
    engine_->bubble_begin(on);
    work(on);
    EXPECT_EQ(engine_->bubble_end(on).status, CKPT_OK);
  }
  // The kinds of all events but copies, once there are as many.
  std::vector<CommKind> marks(std::size_t count) {
    eventually([&] {
      const bool is_whole = reader_->read(events_);
      std::erase_if(events_, [](const arena::CommEvent& event) { return event.kind == CommKind::copy; });
      return is_whole && events_.size() >= count;
    });
    std::vector<CommKind> kinds;
    for (const arena::CommEvent& event : events_) kinds.push_back(event.kind);
    return kinds;
  }
  void take(std::int64_t k) {
    update(static_cast<unsigned char>(k + 1));
    ASSERT_EQ(snapshot(*engine_, k).status, CKPT_OK);
  }
  // Everything that training has to do, with an update right behind before_update().
  void finish(std::int64_t k) {
    ASSERT_EQ(before_update(*engine_).status, CKPT_OK);
    update(0xFF);
    expect_whole(k);
  }
  void expect_whole(std::int64_t k) {
    ASSERT_TRUE(captured(*engine_, k));
    EXPECT_EQ(stored("weights", CheckpointId(1, k)), std::vector(main_bytes, static_cast<std::byte>(k + 1)));
    agent_->grant();
  }
  // After this, captures wait for a bubble that is not due for minutes.
  void learn() {
    take(0);
    finish(0);
    write_long_iterations(arena::CommWriter(agent_->control().comm()));
    learned_ = engine_->stats();
  }
  void wait_until_layered() const {
    EXPECT_TRUE(eventually([this] { return engine_->stats().layered == 1; }));
  }
  static constexpr std::uint64_t all_bytes = kernels::leaf_count(main_bytes) * kernels::leaf_size_bytes;

  std::deque<std::function<void()>> works_;
  std::atomic<std::size_t> allowed_{SIZE_MAX};
  std::unique_ptr<Engine> engine_;
  std::optional<arena::CommReader> reader_;
  std::vector<arena::CommEvent> events_;
  ckpt_stats_t learned_ = CKPT_STATS_INIT;  // after learn(), whose capture copied at once
};

TEST_F(GpuBubbleTest, BubbleLastsWhileTheStreamWaitsNotTheHost) {
  take(0);
  hold(true);
  wait_in_bubble(stream());
  ASSERT_EQ(before_update(*engine_).status, CKPT_OK);
  ASSERT_EQ(marks(2), (std::vector{CommKind::iteration, CommKind::bubble_begin}));
  const auto let_go_at = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
  hold(false);
  ASSERT_EQ(marks(4),
            (std::vector{CommKind::iteration, CommKind::bubble_begin, CommKind::bubble_end, CommKind::update}));
  // The anchor of a machine that is busy may be far off.
  EXPECT_GT(events_[2].at_us, let_go_at - 10'000'000);
  EXPECT_GT(events_[2].at_us, events_[1].at_us);
}

TEST_F(GpuBubbleTest, OnlyTheComputeStreamHasBubbles) {
  const GpuStream other;
  wait_in_bubble(stream());  // before the first snapshot
  take(0);
  wait_in_bubble(other);
  wait_in_bubble(stream());
  EXPECT_EQ(engine_->bubble_end(stream()).status, CKPT_ERR_INVALID);
  EXPECT_EQ(marks(3), (std::vector{CommKind::iteration, CommKind::bubble_begin, CommKind::bubble_end}));
}

TEST_F(GpuBubbleTest, HostWaitIsNoGpuBubble) {
  take(0);
  engine_->bubble_begin({});
  EXPECT_EQ(engine_->bubble_end({}).status, CKPT_OK);
  EXPECT_EQ(engine_->bubble_end({}).status, CKPT_OK);
  wait_in_bubble(stream());
  EXPECT_EQ(marks(3), (std::vector{CommKind::iteration, CommKind::bubble_begin, CommKind::bubble_end}));
}

TEST_F(GpuBubbleTest, NestedBubblesCountOnceAndSnapshotEndsAnOpenOne) {
  take(0);
  engine_->bubble_begin(stream());
  engine_->bubble_begin(stream());
  EXPECT_EQ(engine_->bubble_end(stream()).status, CKPT_OK);
  finish(0);
  take(1);
  EXPECT_EQ(engine_->bubble_end(stream()).status, CKPT_ERR_INVALID);
  EXPECT_EQ(marks(5), (std::vector{CommKind::iteration, CommKind::bubble_begin, CommKind::update, CommKind::bubble_end,
                                   CommKind::iteration}));
}

TEST_F(GpuBubbleTest, HasNoBubblesIfTheGpuCannotWriteWords) {
  engine_.reset();
  buttons().refuse_stream_writes(CUDA_ERROR_NOT_SUPPORTED);
  engine_ = started();
  restore(*engine_);
  reader_.emplace(agent_->control().comm());
  take(0);
  wait_in_bubble(stream());
  EXPECT_EQ(marks(1), std::vector{CommKind::iteration});
}

TEST_F(GpuBubbleTest, CaptureWaitsForTheGpusBubbleAndCompletesInIt) {
  learn();
  take(1);
  wait_until_layered();
  const std::uint64_t kernels = buttons().done(CKPT_DOUBLE_KERNEL);
  hold(true);
  wait_in_bubble(stream());
  EXPECT_TRUE(eventually([this] { return engine_->stats().bubble_bytes == all_bytes; }));
  EXPECT_GT(buttons().done(CKPT_DOUBLE_KERNEL), kernels);
  hold(false);
  finish(1);
  const ckpt_stats_t stats = engine_->stats();
  EXPECT_EQ(stats.update_bytes, learned_.update_bytes);
  EXPECT_EQ(stats.compute_bytes, learned_.compute_bytes);
  EXPECT_EQ(stats.layered_late, 0u);
  EXPECT_EQ(agent_->control().copied().in_bubbles, all_bytes);
}

TEST_F(GpuBubbleTest, EnqueuesNothingBeforeTheGpuReachesTheSnapshot) {
  learn();
  update(2);
  ASSERT_CUDA(cuStreamSynchronize(stream()));
  hold(true);
  work(stream());
  const std::uint64_t kernels = buttons().done(CKPT_DOUBLE_KERNEL);
  take(1);
  wait_in_bubble(stream());
  wait_until_layered();
  EXPECT_EQ(buttons().done(CKPT_DOUBLE_KERNEL), kernels);
  let(1);
  EXPECT_TRUE(eventually([this] { return engine_->stats().bubble_bytes == all_bytes; }));
  hold(false);
  finish(1);
}

// The host is past before_update() long before the GPU: it waits there, but not for the GPU.
TEST_F(GpuBubbleTest, HostRunningAheadWaitsOnlyForTheCopy) {
  learn();
  hold(true);
  take(1);
  work(stream());
  wait_in_bubble(stream());
  auto host = std::async(std::launch::async, [this] {
    cuCtxSetCurrent(context_);
    return before_update(*engine_).status;
  });
  wait_until_layered();
  EXPECT_EQ(host.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  let(1);  // the GPU gets to the bubble, and not to its end
  EXPECT_EQ(host.get(), CKPT_OK);
  update(0xFF);
  EXPECT_TRUE(eventually([this] { return engine_->stats().bubble_bytes == all_bytes; }));
  EXPECT_EQ(cuStreamQuery(stream()), CUDA_ERROR_NOT_READY);
  hold(false);
  expect_whole(1);
  EXPECT_EQ(engine_->stats().layered_late, 0u);
}

TEST_F(GpuBubbleTest, UpdateDoesNotWaitForABubbleAndIsCounted) {
  learn();
  take(1);
  wait_until_layered();
  finish(1);
  const ckpt_stats_t stats = engine_->stats();
  EXPECT_EQ(stats.layered_late, 1u);
  EXPECT_EQ(stats.bubble_bytes, 0u);
  EXPECT_EQ(stats.update_bytes, learned_.update_bytes + all_bytes);
  take(2);  // copies at once
  finish(2);
  EXPECT_EQ(engine_->stats().layered, 1u);
}

TEST_F(GpuBubbleTest, KeepsAtMostTwoChunksInFlightInABubble) {
  buttons().bandwidth(100 << 20);  // two chunks take longer than the engine looks away
  learn();
  buttons().bandwidth(0);
  take(1);
  wait_until_layered();
  ASSERT_CUDA(cuStreamSynchronize(stream()));  // what is captured synchronously is packed
  const std::uint64_t kernels = buttons().done(CKPT_DOUBLE_KERNEL);
  hold(true);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  wait_in_bubble(stream());
  EXPECT_TRUE(eventually([&] { return buttons().done(CKPT_DOUBLE_KERNEL) == kernels + 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(buttons().done(CKPT_DOUBLE_KERNEL), kernels + 2);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  EXPECT_TRUE(eventually([this] { return engine_->stats().bubble_bytes == all_bytes; }));
  hold(false);
  finish(1);
}

TEST_F(GpuBubbleTest, DiscardAndCloseDoNotWaitForABubble) {
  learn();
  take(1);
  wait_until_layered();
  engine_->discard();
  agent_->grant();
  take(2);
  engine_.reset();
  EXPECT_EQ(stored("weights", CheckpointId(1, 2)), std::vector(main_bytes, std::byte{3}));
}

}  // namespace
}  // namespace ckpt::client
