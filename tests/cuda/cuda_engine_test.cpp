// The engine with tensors in device memory, before a fake agent: which bytes become known to the agent, and when.
#include <atomic>
#include <deque>
#include <functional>

#include "cuda_engine_fixture.hpp"

namespace ckpt::client {
namespace {

using testing::HasSubstr;

// The fake agent's segments. One that lies across a multiple of pin_max_bytes has a slot of two registrations.
constexpr std::uint64_t segments = 2, cuts_max = segments;

TEST_F(CudaEngineTest, AgentGetsTheBytesOfTheGpu) {
  const auto engine = started();
  restore(*engine);
  const auto bytes = bytes_of(main_bytes, 1), statistics = bytes_of(1000, 2);
  weights_->write(bytes);
  statistics_->write(statistics);
  ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  ASSERT_TRUE(captured(*engine, 0));
  EXPECT_EQ(stored("weights", CheckpointId(1, 0)), bytes);
  EXPECT_EQ(stored("statistics", CheckpointId(1, 0)), statistics);
}

TEST_F(CudaEngineTest, UpdatesRightAfterBeforeUpdateTearNoCheckpoint) {
  const auto engine = started();
  restore(*engine);
  unsigned char value = 0;
  for (std::int64_t k = 0; k < 20; ++k) {
    update(++value);
    ASSERT_EQ(snapshot(*engine, k).status, CKPT_OK);
    ASSERT_EQ(before_update(*engine).status, CKPT_OK);
    update(0xFF);
    ASSERT_TRUE(captured(*engine, k));
    EXPECT_EQ(stored("weights", CheckpointId(1, k)), std::vector(main_bytes, static_cast<std::byte>(value)));
    agent_->grant();
  }
}

TEST_F(HeldCudaEngineTest, BeforeUpdateDoesNotWaitAndPublishesNothingEarly) {
  const auto engine = started(staging_for_all_bytes);
  restore(*engine);
  update(1);
  ASSERT_CUDA(cuStreamSynchronize(stream()));
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  EXPECT_EQ(engine->stage(0), CKPT_STAGE_CAPTURING);
  EXPECT_FALSE(is_stored(0));
  const Outcome next = snapshot(*engine, 1);
  EXPECT_EQ(next.status, CKPT_SKIPPED);
  EXPECT_THAT(next.text, HasSubstr("still being copied"));
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  ASSERT_TRUE(captured(*engine, 0));
  EXPECT_TRUE(is_stored(0));
  agent_->grant();
  EXPECT_EQ(snapshot(*engine, 2).status, CKPT_OK);
}

// Iterations whose work on the GPU does not end before the copy of the snapshot before.
class GpuLoopTest : public HeldCudaEngineTest {
 protected:
  // Enqueues the work of an iteration. The copy before it cannot land before `begins` is true.
  void work(std::int64_t iteration, std::function<bool()> begins) {
    works_.emplace_back([this, iteration, begins = std::move(begins)] {
      EXPECT_TRUE(eventually(begins));
      buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
      if (iteration > 0) {
        EXPECT_TRUE(captured(*engine_, iteration - 1));
        agent_->grant();
      }
      buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
      ++ended_;
    });
    EXPECT_CUDA(cuLaunchHostFunc(
        stream(), [](void* work) { (*static_cast<std::function<void()>*>(work))(); }, &works_.back()));
  }
  void end_loop() {
    EXPECT_TRUE(eventually([this] { return ended_ == works_.size(); }));
    buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
    EXPECT_CUDA(cuStreamSynchronize(stream()));
  }

  std::unique_ptr<Engine> engine_;
  std::deque<std::function<void()>> works_;
  std::atomic<std::size_t> ended_{0};
  std::atomic<std::int64_t> at_snapshot_{-1};
};

TEST_F(GpuLoopTest, LoopThatRunsAheadOfTheGpuSkipsNothing) {
  engine_ = started(staging_for_all_bytes);
  restore(*engine_);
  for (std::int64_t k = 0; k < 10; ++k) {
    work(k, [this, k] { return at_snapshot_ >= k; });
    EXPECT_EQ(before_update(*engine_).status, CKPT_OK);
    update(static_cast<unsigned char>(k));
    at_snapshot_ = k;
    ASSERT_EQ(snapshot(*engine_, k).status, CKPT_OK) << k;
  }
  EXPECT_EQ(before_update(*engine_).status, CKPT_OK);
  update(0xFF);
  end_loop();
  ASSERT_TRUE(captured(*engine_, 9));
  EXPECT_EQ(stored("weights", CheckpointId(1, 9)), std::vector(main_bytes, std::byte{9}));
  engine_.reset();
}

TEST_F(GpuLoopTest, LoopThatWaitsForTheGpuEachIterationSkipsNothing) {
  engine_ = started(staging_for_all_bytes);
  restore(*engine_);
  for (std::int64_t k = 0; k < 10; ++k) {
    work(k, [] { return true; });
    EXPECT_EQ(before_update(*engine_).status, CKPT_OK);
    EXPECT_CUDA(cuStreamSynchronize(stream()));
    ASSERT_EQ(snapshot(*engine_, k).status, CKPT_OK) << k;
  }
  EXPECT_EQ(before_update(*engine_).status, CKPT_OK);
  end_loop();
  ASSERT_TRUE(captured(*engine_, 9));
  engine_.reset();
}

TEST_F(GpuLoopTest, DoesNotWaitForALongCopyWhileTheGpuIsIdle) {
  engine_ = started(staging_for_all_bytes);
  restore(*engine_);
  work(0, [] { return true; });
  ASSERT_EQ(snapshot(*engine_, 0).status, CKPT_OK);
  ASSERT_EQ(before_update(*engine_).status, CKPT_OK);
  std::function<void()> rest_of_iteration = [this] { EXPECT_TRUE(eventually([this] { return at_snapshot_ == 1; })); };
  EXPECT_CUDA(cuLaunchHostFunc(
      stream(), [](void* work) { (*static_cast<std::function<void()>*>(work))(); }, &rest_of_iteration));
  at_snapshot_ = 1;
  const Outcome overtaken = snapshot(*engine_, 1);
  EXPECT_EQ(overtaken.status, CKPT_SKIPPED);
  EXPECT_THAT(overtaken.text, HasSubstr("still being copied"));
  end_loop();
  engine_.reset();
}

TEST_F(HeldCudaEngineTest, NoticesAForgottenBeforeUpdate) {
  const auto engine = started();
  restore(*engine);
  // Everything is copied when the update comes, so that nothing races here. The engine cannot know that.
  const auto copies = buttons().done(CKPT_DOUBLE_TO_HOST);
  constexpr std::uint64_t chunks = 1 + (main_bytes + staging_bytes / 4 - 1) / (staging_bytes / 4);
  ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
  ASSERT_TRUE(eventually([&] { return buttons().done(CKPT_DOUBLE_TO_HOST) >= copies + 2 * chunks; }));
  update(1);
  WarningLog warnings(*engine);
  const Outcome next = snapshot(*engine, 1);
  EXPECT_EQ(next.status, CKPT_OK);
  EXPECT_THAT(warnings.take(CKPT_WARNING_FORGOTTEN_UPDATE), HasSubstr("before_update() was not called"));
  EXPECT_EQ(engine->wait(0, CKPT_STAGE_CAPTURED, 0).status, CKPT_DISCARDED);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  ASSERT_TRUE(captured(*engine, 1));
  EXPECT_FALSE(is_stored(0));
  EXPECT_EQ(stored("weights", CheckpointId(1, 1)), std::vector(main_bytes, std::byte{1}));
}

TEST_F(CudaEngineTest, RestoresIntoTensorsOnTheGpu) {
  const auto bytes = bytes_of(main_bytes, 3), statistics = bytes_of(1000, 4);
  weights_->write(bytes);
  statistics_->write(statistics);
  {
    const auto engine = started();
    restore(*engine);
    ASSERT_EQ(snapshot(*engine, 7).status, CKPT_OK);
    ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  }  // closing waits for the copy
  const auto engine = started();
  update(0);
  const auto pageable_copies = [] { return buttons().reset == nullptr ? 0 : buttons().pageable_copies(); };
  const auto pageable_before = pageable_copies();
  const ckpt_restored restored = engine->restore(stream());
  EXPECT_EQ(pageable_copies(), pageable_before) << "which are several times slower";
  EXPECT_EQ(restored.iteration, 7);
  EXPECT_EQ(weights_->read(), bytes);
  EXPECT_EQ(statistics_->read(), statistics);
}

// Whether the stream's capture into a graph could be ended as if nothing had happened.
bool ends_whole(CUstream stream) {
  CUgraph graph = nullptr;
  return cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS && graph != nullptr;
}

TEST_F(CudaEngineTest, RefusesCallsDuringAGraphCaptureAndKeepsTheGraphValid) {
  const auto engine = started();
  const auto refused_during_capture = [&](const std::function<void()>& call) {
    EXPECT_CUDA(cuStreamBeginCapture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
    update(1);
    const Caught refused = caught(call);
    EXPECT_EQ(refused.status, CKPT_ERR_INVALID);
    EXPECT_THAT(refused.sentence, HasSubstr("while a CUDA graph is recorded"));
    EXPECT_TRUE(ends_whole(stream()));
    return refused.sentence;
  };
  EXPECT_THAT(refused_during_capture([&] { engine->restore(stream()); }), HasSubstr("restore()"));
  restore(*engine);
  EXPECT_THAT(refused_during_capture([&] { snapshot(*engine, 0); }), HasSubstr("snapshot()"));
  update(2);
  ASSERT_EQ(snapshot(*engine, 1).status, CKPT_OK);
  EXPECT_THAT(refused_during_capture([&] { before_update(*engine); }), HasSubstr("before_update()"));
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  ASSERT_TRUE(captured(*engine, 1));
  EXPECT_EQ(stored("weights", CheckpointId(1, 1)), std::vector(main_bytes, std::byte{2}));
}

TEST_F(CudaEngineTest, SnapshotsDoNotDisturbAGraphCaptureOfAnotherStream) {
  const auto engine = started();
  restore(*engine);
  const GpuStream captured_stream;
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
    update(3);
    ASSERT_CUDA(cuStreamBeginCapture(captured_stream, mode));
    ASSERT_EQ(snapshot(*engine, mode).status, CKPT_OK);
    ASSERT_EQ(before_update(*engine).status, CKPT_OK);
    ASSERT_TRUE(captured(*engine, mode));
    EXPECT_TRUE(ends_whole(captured_stream));
    agent_->grant();
  }
}

TEST_F(HeldCudaEngineTest, DeadContextStopsSnapshotsAndKeepsStoredOnes) {
  const auto engine = started();
  restore(*engine);
  update(5);
  ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  ASSERT_TRUE(captured(*engine, 0));
  agent_->grant();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  ASSERT_EQ(snapshot(*engine, 1).status, CKPT_OK);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  buttons().kill_context_at(CKPT_DOUBLE_TO_HOST, 4, CUDA_ERROR_ILLEGAL_ADDRESS);
  buttons().let(CKPT_DOUBLE_TO_HOST, 4);
  EXPECT_EQ(engine->wait(1, CKPT_STAGE_CAPTURED, 50'000).status, CKPT_DISCARDED);
  const Caught next = caught([&] { snapshot(*engine, 2); });
  EXPECT_EQ(next.status, CKPT_ERR_SYSTEM);
  EXPECT_THAT(next.sentence, HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_FALSE(is_stored(1));
  EXPECT_EQ(stored("weights", CheckpointId(1, 0)), std::vector(main_bytes, std::byte{5}));
}

TEST_F(CudaEngineTest, RefusesATensorOutsideTheGpuByName) {
  const auto made = engine<device::AutoDevice>({}, 1u, staging_bytes);
  std::array<std::byte, 8> on_host{};
  const std::int64_t size = 8;
  const Caught refused = caught([&] {
    made->register_tensor(
        {sizeof(ckpt_tensor), "weights", on_host.data(), &size, 1, CKPT_U8, CKPT_DEVICE, CKPT_OVERLAPPED});
  });
  EXPECT_EQ(refused.status, CKPT_ERR_INVALID);
  EXPECT_THAT(refused.sentence, HasSubstr("tensor \"weights\" was registered as device memory"));
  add(*made, "weights", *weights_, CKPT_OVERLAPPED);
}

TEST_F(HeldCudaEngineTest, WarnsOnceOfReducedStagingAndWorks) {
  buttons().free_bytes(staging_bytes / 2 + 5000);
  const auto made = engine<device::AutoDevice>({}, 1u, staging_bytes);
  EXPECT_EQ(made->stats().gpu_staging_bytes, 0u);
  EXPECT_THAT(add(*made, "weights", *weights_, CKPT_OVERLAPPED), HasSubstr("has too little free memory for"));
  EXPECT_EQ(add(*made, "statistics", *statistics_, CKPT_SYNCHRONOUS), "");
  EXPECT_EQ(made->stats().gpu_staging_bytes, staging_bytes / 2);
  buttons().reset();
  restore(*made);
  update(3);
  ASSERT_EQ(snapshot(*made, 0).status, CKPT_OK);
  ASSERT_EQ(before_update(*made).status, CKPT_OK);
  ASSERT_TRUE(captured(*made, 0));
  EXPECT_EQ(stored("weights", CheckpointId(1, 0)), std::vector(main_bytes, std::byte{3}));
  EXPECT_THAT(agent_->last_reserve().at("shortage"), HasSubstr("has too little free memory for"));
}

TEST_F(CudaEngineTest, WarnsOfNothingIfThereIsEnoughMemory) {
  const auto made = engine<device::AutoDevice>({}, 1u, staging_bytes);
  EXPECT_EQ(add(*made, "weights", *weights_, CKPT_OVERLAPPED), "");
  EXPECT_EQ(made->stats().gpu_staging_bytes, staging_bytes);
}

TEST_F(HeldCudaEngineTest, UnpinnableMemoryFailsOnlyTheSnapshot) {
  const auto engine = started();
  buttons().refuse_registration(CUDA_ERROR_NOT_PERMITTED);
  restore(*engine);
  const Caught refused = caught([&] { snapshot(*engine, 0); });
  EXPECT_EQ(refused.status, CKPT_ERR_SYSTEM);
  EXPECT_THAT(refused.sentence, HasSubstr("CUDA_ERROR_NOT_PERMITTED"));
  EXPECT_THAT(refused.sentence, HasSubstr(directory_.path()));
  EXPECT_EQ(before_update(*engine).status, CKPT_OK);
}

TEST_F(HeldCudaEngineTest, WarnsOnceOfDelayedPinningAndContinuesSnapshots) {
  const auto engine = started();
  buttons().refuse_registration(CUDA_ERROR_NOT_PERMITTED);
  restore(*engine);
  EXPECT_EQ(caught([&] { snapshot(*engine, 0); }).status, CKPT_ERR_SYSTEM);
  buttons().refuse_registration(0);
  WarningLog warnings(*engine);
  std::int64_t k = 0;
  EXPECT_TRUE(eventually([&] {
    Outcome outcome{CKPT_SKIPPED, nullptr};
    caught([&] { outcome = snapshot(*engine, ++k); });
    return outcome.status == CKPT_OK;
  }));
  EXPECT_THAT(warnings.take(CKPT_WARNING_GPU_MEMORY), HasSubstr("is pinned for the GPU now"));
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  ASSERT_TRUE(captured(*engine, k));
  agent_->grant();
  ASSERT_EQ(snapshot(*engine, k + 1).status, CKPT_OK);
  EXPECT_EQ(warnings.take(CKPT_WARNING_GPU_MEMORY), "");
}

TEST_F(HeldCudaEngineTest, SkipsASnapshotDuringPinningAndReportsProgress) {
  const auto engine = started();
  buttons().hold_registrations(1);
  buttons().let_registrations(1);  // of the words that the GPU writes
  restore(*engine);
  const Outcome skipped = snapshot(*engine, 0);
  EXPECT_EQ(skipped.status, CKPT_SKIPPED);
  EXPECT_THAT(skipped.text, HasSubstr("0 % of it is pinned for the GPU"));
  buttons().hold_registrations(0);
  EXPECT_EQ(snapshot(*engine, 1).status, CKPT_OK);
}

TEST_F(HeldCudaEngineTest, GrowingStatePinsAndFreesNothingOnTheTrainingThread) {
  const auto engine = started();
  restore(*engine);
  ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  ASSERT_TRUE(captured(*engine, 0));
  const auto registrations = buttons().registrations();  // of 3 slots in each segment
  GpuBytes moments(2 * main_bytes), more_statistics(200'000);
  const auto bytes = bytes_of(2 * main_bytes, 7);
  moments.write(bytes);
  add(*engine, "moments", moments, CKPT_OVERLAPPED);
  add(*engine, "more statistics", more_statistics, CKPT_SYNCHRONOUS);
  const auto registered_here = buttons().registered_here(), freed_here = buttons().freed_here();
  std::int64_t k = 0;
  EXPECT_TRUE(eventually([&] { return snapshot(*engine, ++k).status == CKPT_OK; }));
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  EXPECT_EQ(buttons().registered_here(), registered_here);
  EXPECT_EQ(buttons().freed_here(), freed_here);
  ASSERT_TRUE(captured(*engine, k));
  EXPECT_EQ(stored("moments", CheckpointId(1, k)), bytes);
  EXPECT_TRUE(eventually([&] { return buttons().registrations() <= registrations + cuts_max; }))
      << "the old slots are let go";
}

TEST_F(HeldCudaEngineTest, EachSlotIsOneRegistration) {
  const auto before = buttons().registrations();
  const auto engine = started();
  restore(*engine);
  const auto pinned_by_restore = buttons().registered_here();
  ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
  constexpr std::uint64_t slots = 3, words = 1;
  const auto registrations = buttons().registrations() - before;
  EXPECT_GE(registrations, slots * segments + words);
  EXPECT_LE(registrations, slots * segments + words + cuts_max);
  EXPECT_EQ(buttons().registered_here(), pinned_by_restore) << "training waits for no pinning";
}

TEST_F(HeldCudaEngineTest, PinsAnAddedSlotInTheBackground) {
  const auto engine = started();
  restore(*engine);
  ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  ASSERT_TRUE(captured(*engine, 0));
  const auto registrations = buttons().registrations(), registered_here = buttons().registered_here();
  agent_->add_slots();
  update(7);
  ASSERT_EQ(snapshot(*engine, 1).status, CKPT_OK);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  ASSERT_TRUE(captured(*engine, 1));
  EXPECT_EQ(stored("weights", CheckpointId(1, 1)), std::vector(main_bytes, std::byte{7}));
  EXPECT_GE(buttons().registrations(), registrations + segments);
  EXPECT_LE(buttons().registrations(), registrations + segments + cuts_max);
  EXPECT_EQ(buttons().registered_here(), registered_here);
}

TEST_F(HeldCudaEngineTest, UnpinsEverythingWhenTheEngineEnds) {
  const auto before = buttons().registrations();
  {
    const auto engine = started();
    restore(*engine);
    ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
    EXPECT_GT(buttons().registrations(), before);
  }
  EXPECT_EQ(buttons().registrations(), before);
}

}  // namespace
}  // namespace ckpt::client
