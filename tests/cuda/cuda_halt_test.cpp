// Halts with tensors on a GPU: what the host waits for, what is captured late, and what a rank keeps that rejoins.
#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "../client/halt_fixture.hpp"
#include "cuda_engine_fixture.hpp"

namespace ckpt::client {
namespace {

using testing::HasSubstr;

// A communication that gets no further on its stream until it is aborted.
class HungCommunication {
 public:
  explicit HungCommunication(CUstream stream) : stream_(stream), aborted_(add_flag()) {
    EXPECT_CUDA(cuLaunchHostFunc(
        stream, [](void* aborted) { static_cast<std::atomic<bool>*>(aborted)->wait(false); }, &aborted_));
  }
  ~HungCommunication() {
    abort();
    cuStreamSynchronize(stream_);
  }
  HungCommunication(const HungCommunication&) = delete;
  HungCommunication& operator=(const HungCommunication&) = delete;
  // The stream runs on.
  void abort() {
    aborted_ = true;
    aborted_.notify_all();
  }

 private:
  // Never freed: if the context dies, nobody can wait until the stream has left the communication.
  static std::atomic<bool>& add_flag() {
    static std::deque<std::atomic<bool>> flags;
    return flags.emplace_back(false);
  }

  CUstream stream_;
  std::atomic<bool>& aborted_;
};

class GpuHaltTest : public Halting<HeldCudaEngineTest> {
 protected:
  static constexpr unsigned char garbage = 0xEE;

  std::unique_ptr<Engine> halting_engine(const char* capture_every = "10", const Engine::Limits& limits = {}) {
    auto engine = std::make_unique<Engine>(options({{"on_suspicion", "halt"}, {"capture_every", capture_every}}),
                                           std::make_unique<device::AutoDevice>(1u, staging_bytes), limits);
    add(*engine, "weights", *weights_, CKPT_OVERLAPPED);
    add(*engine, "statistics", *statistics_, CKPT_SYNCHRONOUS);
    for (std::size_t i = 0; i < biases_.size(); ++i)
      add(*engine, ("bias" + std::to_string(i)).c_str(), *biases_[i], CKPT_OVERLAPPED);
    engine->restore(stream());
    return engine;
  }
  static unsigned char value(int k) { return static_cast<unsigned char>(k + 1); }
  static std::vector<std::byte> weights(int k) { return std::vector(main_bytes, std::byte{value(k)}); }
  void fill_statistics(unsigned char value) {
    EXPECT_CUDA(cuMemsetD8Async(statistics_->pointer(), value, statistics_->size_bytes(), stream()));
  }
  // One update, up to the end of its snapshot.
  void iterate(Engine& engine, int k) {
    ASSERT_EQ(before_update(engine).status, CKPT_OK) << k;
    if (agent_->control().used_grant() == agent_->control().grant().sequence) agent_->grant();
    fill_statistics(value(k));
    update(value(k));
    snapshot(engine, k);
    if (k % 10 == 0) {
      ASSERT_EQ(before_update(engine).status, CKPT_OK) << k;
      ASSERT_TRUE(captured(engine, k));
      agent_->grant();
    }
  }
  void train(Engine& engine, int first, int last) {
    for (int k = first; k <= last; ++k) iterate(engine, k);
  }
  // As training does: no update without leave.
  std::future<ckpt_status> update_if_allowed(Engine& engine, int k) {
    return std::async(std::launch::async, [&engine, k, this] {
      EXPECT_CUDA(cuCtxSetCurrent(context_));
      const ckpt_status status = before_update(engine).status;
      if (status == CKPT_OK) update(value(k));
      return status;
    });
  }
  static bool waits(const std::future<ckpt_status>& call) {
    return call.wait_for(std::chrono::milliseconds(30)) == std::future_status::timeout;
  }
  void expect_stored(int k) {
    EXPECT_EQ(stored("weights", CheckpointId(1, k)), weights(k));
    EXPECT_EQ(stored("statistics", CheckpointId(1, k)), std::vector(1000, std::byte{value(k)}));
  }

  std::vector<std::unique_ptr<GpuBytes>> biases_;  // more tensors, if a test wants them
};

TEST_F(GpuHaltTest, KeepsThePrivateShardBetweenDueIterations) {
  const auto engine = halting_engine();
  train(*engine, 0, 3);
  EXPECT_FALSE(is_stored("rank0", 3));
  EXPECT_EQ(stored("statistics", CheckpointId(1, 3)), std::vector(1000, std::byte{value(3)}));
}

TEST_F(GpuHaltTest, DueIterationAlsoKeepsItsPrivateShard) {
  const auto engine = halting_engine();
  train(*engine, 0, 9);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  fill_statistics(value(10));
  ASSERT_EQ(snapshot(*engine, 10).status, CKPT_OK);
  EXPECT_FALSE(is_stored("rank0", 10));
  EXPECT_EQ(stored("statistics", CheckpointId(1, 10)), std::vector(1000, std::byte{value(10)}));
}

TEST_F(GpuHaltTest, EnqueuesNoUpdateBehindAHungCommunication) {
  const auto engine = halting_engine();
  train(*engine, 0, 3);
  HungCommunication communication(stream());
  auto update = update_if_allowed(*engine, garbage);
  EXPECT_TRUE(waits(update));
  halt(3);
  await(FreezeState::captured, 3);
  EXPECT_EQ(update.get(), CKPT_ERR_HALTED);
  communication.abort();
  ASSERT_CUDA(cuStreamSynchronize(stream()));
  EXPECT_EQ(weights_->read(), weights(3)) << "the rank can keep its tensors";
  expect_stored(3);
}

TEST_F(GpuHaltTest, AllowsAnUpdateOnceTheGpuReachesIt) {
  const auto engine = halting_engine();
  train(*engine, 0, 3);
  HungCommunication communication(stream());
  auto update = update_if_allowed(*engine, 4);
  EXPECT_TRUE(waits(update));
  communication.abort();
  EXPECT_EQ(update.get(), CKPT_OK);
}

TEST_F(GpuHaltTest, RankWhoseUpdateHangsOnTheGpuIsNotAtRest) {
  const auto engine = halting_engine();
  train(*engine, 0, 3);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  HungCommunication communication(stream());
  update(value(4));
  auto call = std::async(std::launch::async, [&] { return snapshot(*engine, 4).status; });
  EXPECT_TRUE(waits(call));
  halt(3);
  await(FreezeState::updating, 3);
  communication.abort();
  EXPECT_EQ(call.get(), CKPT_SKIPPED);
  await(FreezeState::captured, 4);
  EXPECT_EQ(stored("weights", CheckpointId(1, 4)), weights(4));
}

TEST_F(GpuHaltTest, LaggingRankWaitsForTheGpuBeforeItsLastUpdate) {
  const auto engine = halting_engine();
  train(*engine, 0, 3);
  HungCommunication communication(stream());
  auto update = update_if_allowed(*engine, 4);
  halt(std::nullopt);
  await(FreezeState::held, 3);
  EXPECT_TRUE(waits(update));
  halt(4);
  await(FreezeState::updating, 3);
  EXPECT_TRUE(waits(update));
  communication.abort();
  ASSERT_EQ(update.get(), CKPT_OK);
  fill_statistics(value(4));
  snapshot(*engine, 4);
  await(FreezeState::captured, 4);
  expect_stored(4);
}

TEST_F(GpuHaltTest, HungAbortDoesNotDelayTheCapture) {
  const auto engine = halting_engine();
  train(*engine, 0, 3);
  HungCommunication communication(stream());
  auto abort = std::async(std::launch::async, [&] {
    EXPECT_CUDA(cuCtxSetCurrent(context_));
    return cuStreamSynchronize(stream());  // as an abort does that waits for its kernel
  });
  auto update = update_if_allowed(*engine, garbage);
  halt(3);
  await(FreezeState::captured, 3);
  expect_stored(3);
  EXPECT_EQ(update.get(), CKPT_ERR_HALTED);
  EXPECT_EQ(abort.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
  communication.abort();
  EXPECT_EQ(abort.get(), CUDA_SUCCESS);
}

TEST_F(GpuHaltTest, LateCaptureNeitherAllocatesNorWaitsForTheDefaultStream) {
  for (int i = 0; i < 100; ++i) biases_.push_back(std::make_unique<GpuBytes>(i + 1));
  const auto engine = halting_engine();
  train(*engine, 1, 4);  // no capture of a main shard before
  HungCommunication communication(nullptr);
  const auto allocations = buttons().allocations(), registered = buttons().registered();
  halt(4);
  await(FreezeState::captured, 4);
  EXPECT_EQ(buttons().allocations(), allocations);
  EXPECT_EQ(buttons().registered(), registered);
  expect_stored(4);
}

TEST_F(GpuHaltTest, FinishesACaptureWhileACommunicationHangs) {
  const auto engine = halting_engine();
  train(*engine, 0, 9);
  ASSERT_EQ(before_update(*engine).status, CKPT_OK);
  fill_statistics(value(10));
  update(value(10));
  ASSERT_EQ(snapshot(*engine, 10).status, CKPT_OK);
  HungCommunication communication(stream());
  halt(10);
  await(FreezeState::captured, 10);
  expect_stored(10);
}

TEST_F(GpuHaltTest, ReportsAHungGpuWithinItsDeadline) {
  const auto engine = halting_engine("10", {.late_capture_ms = 200});
  train(*engine, 0, 3);
  buttons().hold(CKPT_DOUBLE_KERNEL, 1);
  halt(3);
  await(FreezeState::refused, 3);
  EXPECT_THAT(before_update(*engine).text, HasSubstr("is not captured, because its capture did not end within 200 ms"));
  EXPECT_FALSE(is_stored("rank0", 3));
  buttons().hold(CKPT_DOUBLE_KERNEL, 0);
}

TEST_F(GpuHaltTest, BeforeUpdateFailsIfTheGpuIsLateAndCanBeRepeated) {
  const auto engine = halting_engine("10", {.gpu_work_ms = 1000});
  train(*engine, 0, 3);
  HungCommunication communication(stream());
  const Caught refused = caught([&] { before_update(*engine); });
  EXPECT_EQ(refused.status, CKPT_ERR_TIMEOUT);
  EXPECT_THAT(refused.sentence, HasSubstr("before_update() waited 1000 ms for the GPU"));
  communication.abort();
  ASSERT_CUDA(cuStreamSynchronize(stream()));
  iterate(*engine, 4);
  halt(4);
  await(FreezeState::captured, 4);
}

TEST_F(GpuHaltTest, DeadContextDoesNotBlockTheHost) {
  const auto engine = halting_engine();
  train(*engine, 0, 3);
  HungCommunication communication(stream());
  auto update = std::async(std::launch::async, [&] { return before_update(*engine).status; });
  EXPECT_TRUE(waits(update));
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(update.get(), CKPT_OK) << "training learns of it by its own calls";
  communication.abort();
  EXPECT_EQ(caught([&] { snapshot(*engine, 4); }).status, CKPT_ERR_SYSTEM);
}

TEST_F(GpuHaltTest, ClosingCapturesTheLastIteration) {
  auto engine = halting_engine();
  train(*engine, 0, 3);
  engine.reset();
  expect_stored(3);
}

class GpuRejoinTest : public GpuHaltTest {
 protected:
  // Halted at iteration k while a communication hangs, which is then aborted.
  void halt_at(Engine& engine, int k) {
    HungCommunication communication(stream());
    halt(k);
    await(FreezeState::captured, k);
    EXPECT_EQ(before_update(engine).status, CKPT_ERR_HALTED);
    communication.abort();
    fill_statistics(garbage);  // as the forward pass does
  }
};

TEST_F(GpuRejoinTest, KeepsTensorsThatHoldTheRestoredIteration) {
  const auto engine = halting_engine();
  train(*engine, 0, 3);
  halt_at(*engine, 3);
  WarningLog warnings(*engine);
  engine->rejoin();
  const ckpt_restored restored = engine->restore(stream());
  EXPECT_EQ(restored.iteration, 3);
  EXPECT_EQ(restored.main_tier, CKPT_TIER_LIVE);
  EXPECT_EQ(restored.bytes, statistics_->size_bytes());
  EXPECT_EQ(weights_->read(), weights(3));
  EXPECT_EQ(statistics_->read(), std::vector(1000, std::byte{value(3)}));
  EXPECT_EQ(warnings.take(CKPT_WARNING_TENSORS_CHANGED), "");
}

TEST_F(GpuRejoinTest, ReportsAFlippedBitAndLoadsThePiece) {
  const auto engine = halting_engine();
  train(*engine, 0, 3);
  halt_at(*engine, 3);
  WarningLog warnings(*engine);
  engine->rejoin();
  const std::byte flipped{garbage};
  ASSERT_CUDA(cuMemcpyHtoD(weights_->pointer() + 1'234'567, &flipped, 1));
  const ckpt_restored restored = engine->restore(stream());
  EXPECT_EQ(restored.main_tier, CKPT_TIER_LOCAL);
  EXPECT_EQ(restored.bytes, main_bytes + statistics_->size_bytes());
  EXPECT_EQ(weights_->read(), weights(3));
  EXPECT_THAT(warnings.take(CKPT_WARNING_TENSORS_CHANGED),
              HasSubstr("tensor weights is not what was captured at iteration 3"));
}

TEST_F(GpuRejoinTest, TrainingContinuesInPinnedSlotsAndCanBeHaltedAgain) {
  const auto engine = halting_engine();
  train(*engine, 0, 3);
  for (int round = 0, k = 3; round < 3; ++round) {
    const auto registrations = buttons().registrations(), registered = buttons().registered();
    halt_at(*engine, k);
    engine->rejoin();
    const ckpt_restored restored = engine->restore(stream());
    ASSERT_EQ(restored.main_tier, CKPT_TIER_LIVE) << round;
    ASSERT_EQ(restored.next_iteration, k + 1);
    train(*engine, k + 1, k + 12);
    k += 12;
    EXPECT_EQ(buttons().registrations(), registrations) << round;
    EXPECT_EQ(buttons().registered(), registered + 1) << "the words that the GPU writes";
  }
}

}  // namespace
}  // namespace ckpt::client
