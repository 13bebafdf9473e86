// The engine with tensors in device memory, before a fake agent: which bytes become known to the agent, and when.
#include <atomic>
#include <deque>
#include <functional>
#include <optional>

#include "../client/engine_fixture.hpp"
#include "device/auto_device.hpp"
#include "gpu.hpp"

namespace ckpt::client {
namespace {

using namespace testing_support;
using testing::HasSubstr;

constexpr std::size_t main_bytes = 3'000'017;
constexpr std::uint64_t staging_bytes = 1 << 20;
constexpr std::uint64_t staging_for_all_bytes = 8 << 20;

class CudaEngineTest : public EngineTest {
 protected:
  void SetUp() override {
    if (buttons().reset != nullptr) buttons().reset();
    if (cuInit(0) != CUDA_SUCCESS) GTEST_SKIP() << "no GPU";
    ASSERT_CUDA(cuDeviceGet(&device_, 0));
    ASSERT_CUDA(cuDevicePrimaryCtxRetain(&context_, device_));
    ASSERT_CUDA(cuCtxSetCurrent(context_));
    weights_.emplace(main_bytes);
    statistics_.emplace(1000);
    stream_.emplace();
  }
  void TearDown() override {
    if (buttons().reset != nullptr) buttons().reset();
    if (context_ == nullptr) return;
    stream_.reset();
    weights_.reset();
    statistics_.reset();
    cuCtxSetCurrent(nullptr);
    cuDevicePrimaryCtxRelease(device_);
  }

  std::unique_ptr<Engine> started(std::uint64_t staging = staging_bytes) {
    auto made = engine<device::AutoDevice>({}, 1u, staging);
    add(*made, "weights", *weights_, CKPT_OVERLAPPED);
    add(*made, "statistics", *statistics_, CKPT_SYNCHRONOUS);
    return made;
  }
  static std::string add(Engine& engine, const char* name, const GpuBytes& memory, ckpt_capture capture) {
    const auto size = static_cast<std::int64_t>(memory.size_bytes());
    WarningLog warnings(engine);
    engine.register_tensor({sizeof(ckpt_tensor), name, memory.data(), &size, 1, CKPT_U8, CKPT_DEVICE, capture});
    engine.on_warning(nullptr, nullptr);
    return warnings.take(CKPT_WARNING_GPU_MEMORY);
  }
  Outcome snapshot(Engine& engine, std::int64_t iteration) { return engine.snapshot(iteration, stream()); }
  Outcome before_update(Engine& engine) {
    const device::Stream stream = this->stream();
    return engine.before_update({&stream, 1});
  }
  CUstream stream() const { return *stream_; }
  // Enqueued, as an optimizer's step is.
  void update(unsigned char value) { EXPECT_CUDA(cuMemsetD8Async(weights_->pointer(), value, main_bytes, stream())); }
  static bool captured(const Engine& engine, std::int64_t iteration) {
    return engine.wait(iteration, CKPT_STAGE_CAPTURED, 50'000).status == CKPT_OK;
  }
  bool is_stored(std::int64_t iteration) { return agent_->piece("rank0", CheckpointId(1, iteration)).has_value(); }

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::optional<GpuBytes> weights_, statistics_;
  std::optional<GpuStream> stream_;
};

// The driver does what a test tells it to.
template <class Base>
class Held : public Base {
 protected:
  void SetUp() override {
    if (buttons().reset == nullptr) GTEST_SKIP() << "a real driver has no buttons";
    Base::SetUp();
  }
};
using HeldCudaEngineTest = Held<CudaEngineTest>;

TEST_F(CudaEngineTest, WhatTheAgentGetsIsWhatWasOnTheGpu) {
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

TEST_F(CudaEngineTest, NoVersionIsTornByUpdatesEnqueuedRightAfterBeforeUpdate) {
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

TEST_F(HeldCudaEngineTest, BeforeUpdateDoesNotWaitForTheGpuAndNothingIsKnownBeforeAllIsThere) {
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
    works_.push_back([this, iteration, begins = std::move(begins)] {
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

TEST_F(GpuLoopTest, ALoopThatRunsAheadOfTheGpuSkipsNothing) {
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

TEST_F(GpuLoopTest, ALoopThatWaitsForTheGpuInEachIterationSkipsNothing) {
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

TEST_F(GpuLoopTest, ACopyThatDoesNotFitTheIterationIsNotWaitedForOnceTheGpuHasNothingToDo) {
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

TEST_F(HeldCudaEngineTest, AForgottenBeforeUpdateIsNoticed) {
  const auto engine = started();
  restore(*engine);
  // Everything is packed when the update comes, so that nothing races here; which the engine cannot know.
  const auto kernels = buttons().done(CKPT_DOUBLE_KERNEL);
  constexpr std::uint64_t chunks = 1 + (main_bytes + staging_bytes / 4 - 1) / (staging_bytes / 4);
  ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
  ASSERT_TRUE(eventually([&] { return buttons().done(CKPT_DOUBLE_KERNEL) == kernels + 2 * chunks; }));
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

TEST_F(CudaEngineTest, ACallDuringTheCaptureOfAGraphIsRefusedAndTheGraphStaysValid) {
  const auto engine = started();
  const auto refused_during_capture = [&](const std::function<void()>& call) {
    EXPECT_CUDA(cuStreamBeginCapture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
    update(1);
    const Caught refused = caught(call);
    EXPECT_EQ(refused.status, CKPT_ERR_INVALID);
    EXPECT_THAT(refused.sentence, HasSubstr("captured into a CUDA graph"));
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

TEST_F(CudaEngineTest, SnapshotsDuringTheCaptureOfAnotherStreamDoNotDisturbIt) {
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

TEST_F(HeldCudaEngineTest, ADeadContextStopsSnapshotsAndLeavesWhatWasStored) {
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

TEST_F(CudaEngineTest, ATensorThatIsNotOnTheGpuIsRefusedByName) {
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

TEST_F(HeldCudaEngineTest, LessStagingThanWasAskedForIsToldOnceAndWorks) {
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

TEST_F(CudaEngineTest, EnoughMemoryIsNoNews) {
  const auto made = engine<device::AutoDevice>({}, 1u, staging_bytes);
  EXPECT_EQ(add(*made, "weights", *weights_, CKPT_OVERLAPPED), "");
  EXPECT_EQ(made->stats().gpu_staging_bytes, staging_bytes);
}

TEST_F(HeldCudaEngineTest, MemoryThatCannotBePinnedIsAnErrorOfTheSnapshotAlone) {
  const auto engine = started();
  buttons().refuse_registration(CUDA_ERROR_NOT_PERMITTED);
  restore(*engine);
  const Caught refused = caught([&] { snapshot(*engine, 0); });
  EXPECT_EQ(refused.status, CKPT_ERR_SYSTEM);
  EXPECT_THAT(refused.sentence, HasSubstr("CUDA_ERROR_NOT_PERMITTED"));
  EXPECT_THAT(refused.sentence, HasSubstr(directory_.path()));
  EXPECT_EQ(before_update(*engine).status, CKPT_OK);
}

TEST_F(HeldCudaEngineTest, EachSlotIsOneRegistration) {
  const auto before = buttons().registrations();
  const auto engine = started();
  restore(*engine);
  const auto pinned_by_restore = buttons().registered_here();
  ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
  constexpr std::uint64_t slots = 3, segments = 2, words = 1;  // slots and segments: the fake agent's
  EXPECT_EQ(buttons().registrations() - before, slots * segments + words);
  EXPECT_EQ(buttons().registered_here(), pinned_by_restore) << "training waits for no pinning";
}

TEST_F(HeldCudaEngineTest, ASlotThatTheAgentAddsIsPinnedBesideTraining) {
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
  EXPECT_EQ(buttons().registrations(), registrations + 2);
  EXPECT_EQ(buttons().registered_here(), registered_here);
}

TEST_F(HeldCudaEngineTest, AnEngineThatEndsLeavesNothingPinned) {
  const auto before = buttons().registrations();
  {
    const auto engine = started();
    restore(*engine);
    ASSERT_EQ(snapshot(*engine, 0).status, CKPT_OK);
    EXPECT_GT(buttons().registrations(), before);
  }
  EXPECT_EQ(buttons().registrations(), before);
}

using arena::CommKind;

// Communications that are copies to the device, which tests can hold.
class GpuCommTest : public CudaEngineTest {
 protected:
  void SetUp() override {
    CudaEngineTest::SetUp();
    if (IsSkipped()) return;
    buffer_.emplace(1);
    open();
  }
  void TearDown() override {
    if (buttons().reset != nullptr) buttons().reset();
    engine_.reset();
    buffer_.reset();
    CudaEngineTest::TearDown();
  }
  void open() {
    engine_.reset();
    engine_ = started();
    restore(*engine_);
    reader_.emplace(agent_->control().comm());
  }
  void hold(bool held) { buttons().hold(CKPT_DOUBLE_TO_DEVICE, held ? 1 : 0); }
  void communicate(CUstream on) {
    const std::byte byte{1};
    EXPECT_CUDA(cuMemcpyHtoDAsync(buffer_->pointer(), &byte, 1, on));
  }
  bool becomes_busy() {
    return eventually([this] { return reader_->is_busy(); });
  }
  bool becomes_idle() {
    return eventually([this] { return !reader_->is_busy(); });
  }
  // The events' kinds, once there are as many.
  std::vector<CommKind> notified(std::size_t count) {
    eventually([&] { return reader_->read(events_) && events_.size() >= count; });
    std::vector<CommKind> kinds;
    for (const arena::CommEvent& event : events_) kinds.push_back(event.kind);
    return kinds;
  }

  std::optional<GpuBytes> buffer_;
  std::unique_ptr<Engine> engine_;
  std::optional<arena::CommReader> reader_;
  std::vector<arena::CommEvent> events_;
};
using HeldGpuCommTest = Held<GpuCommTest>;

TEST_F(HeldGpuCommTest, TheGateTurnsWhenTheGpuGetsThereAndNotWhenTheHostDoes) {
  hold(true);
  communicate(stream());  // what is before
  engine_->comm_begin(2, stream());
  communicate(stream());
  EXPECT_EQ(engine_->comm_end(2, stream()).status, CKPT_OK);
  EXPECT_FALSE(reader_->is_busy());
  buttons().let(CKPT_DOUBLE_TO_DEVICE, 1);
  EXPECT_TRUE(becomes_busy());
  EXPECT_EQ(notified(1), std::vector{CommKind::begin});
  hold(false);
  EXPECT_TRUE(becomes_idle());
  EXPECT_EQ(notified(2), (std::vector{CommKind::begin, CommKind::end}));
  EXPECT_EQ(events_[0].channel, 2);
  EXPECT_EQ(events_[1].channel, 2);
  EXPECT_GT(events_[1].at_us, events_[0].at_us);
}

TEST_F(HeldGpuCommTest, AnIterationEndsWhenTheGpuHasEndedIt) {
  engine_->comm_begin(0, stream());
  hold(true);
  communicate(stream());
  EXPECT_EQ(engine_->comm_end(0, stream()).status, CKPT_OK);
  ASSERT_EQ(snapshot(*engine_, 0).status, CKPT_OK);
  EXPECT_EQ(notified(1), std::vector{CommKind::begin});
  hold(false);
  EXPECT_EQ(notified(3), (std::vector{CommKind::begin, CommKind::end, CommKind::iteration}));
}

TEST_F(HeldGpuCommTest, StreamsMayOvertakeEachOther) {
  const GpuStream one, two;
  hold(true);
  engine_->comm_begin(0, one);
  engine_->comm_begin(0, two);
  communicate(one);
  EXPECT_EQ(engine_->comm_end(0, one).status, CKPT_OK);
  EXPECT_EQ(engine_->comm_end(0, two).status, CKPT_OK);
  ASSERT_CUDA(cuStreamSynchronize(two));
  EXPECT_TRUE(becomes_busy());
  hold(false);
  EXPECT_TRUE(becomes_idle());
  ASSERT_CUDA(cuStreamSynchronize(one));
  EXPECT_FALSE(reader_->is_busy());
}

TEST_F(GpuCommTest, PlacesAreUsedAgain) {
  for (std::uint32_t i = 0; i < 2 * arena::comm_gpu_max + 3; ++i) {
    const std::uint64_t total = reader_->begun_total();
    engine_->comm_begin(i % 8, stream());
    ASSERT_CUDA(cuStreamSynchronize(stream()));
    ASSERT_TRUE(reader_->is_busy());
    ASSERT_NE(reader_->begun_total(), total);
    ASSERT_EQ(engine_->comm_end(i % 8, stream()).status, CKPT_OK);
    ASSERT_CUDA(cuStreamSynchronize(stream()));
    ASSERT_FALSE(reader_->is_busy());
  }
}

TEST_F(HeldGpuCommTest, MoreThanThereArePlacesForAreNotSeenAndEndAllTheSame) {
  buttons().queue_depth(100'000);
  hold(true);
  communicate(stream());
  for (std::uint32_t i = 0; i < arena::comm_gpu_max + 100; ++i) {
    engine_->comm_begin(1, stream());
    ASSERT_EQ(engine_->comm_end(1, stream()).status, CKPT_OK);
  }
  hold(false);
  ASSERT_CUDA(cuStreamSynchronize(stream()));
  EXPECT_FALSE(reader_->is_busy());
  EXPECT_EQ(notified(2 * arena::comm_gpu_max).size(), 2 * arena::comm_gpu_max);
  EXPECT_EQ(engine_->comm_end(1, stream()).status, CKPT_ERR_INVALID);
}

TEST_F(GpuCommTest, WhatAGraphCapturesIsNotSeen) {
  ASSERT_CUDA(cuStreamBeginCapture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  engine_->comm_begin(0, stream());
  EXPECT_EQ(engine_->comm_end(0, stream()).status, CKPT_OK);
  CUgraph graph = nullptr;
  ASSERT_CUDA(cuStreamEndCapture(stream(), &graph));
  engine_->comm_begin(0, stream());
  EXPECT_EQ(engine_->comm_end(0, stream()).status, CKPT_OK);
  EXPECT_EQ(notified(2), (std::vector{CommKind::begin, CommKind::end}));
  EXPECT_EQ(reader_->begun_total(), 1u);
}

TEST_F(GpuCommTest, AnEndThatTheGpuDoesNotTakeIsToldByTheHost) {
  engine_->comm_begin(0, stream());
  EXPECT_TRUE(becomes_busy());
  ASSERT_CUDA(cuStreamBeginCapture(stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_EQ(engine_->comm_end(0, stream()).status, CKPT_OK);
  EXPECT_FALSE(reader_->is_busy());
  CUgraph graph = nullptr;
  ASSERT_CUDA(cuStreamEndCapture(stream(), &graph));
}

TEST_F(HeldGpuCommTest, WhereTheGpuCannotWriteWordsTheHostTells) {
  buttons().refuse_stream_writes(CUDA_ERROR_NOT_SUPPORTED);
  open();
  hold(true);
  communicate(stream());
  engine_->comm_begin(3, stream());
  EXPECT_TRUE(reader_->is_busy());
  EXPECT_EQ(engine_->comm_end(3, stream()).status, CKPT_OK);
  EXPECT_FALSE(reader_->is_busy());
  EXPECT_EQ(engine_->comm_end(3, stream()).status, CKPT_ERR_INVALID);
}

}  // namespace
}  // namespace ckpt::client
