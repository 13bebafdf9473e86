// A trainer on a GPU that only calls NCCL: libckptinterpose marks its communications for the engine, and aborts them
// once the late capture has ended.
#include <future>

#include "../client/halt_fixture.hpp"
#include "cuda_engine_fixture.hpp"
#include "interpose_pair.hpp"

namespace ckpt::client {
namespace {

using testing::HasSubstr;

class InterposedEngineTest : public Halting<HeldCudaEngineTest> {
 protected:
  void SetUp() override {
    Halting<HeldCudaEngineTest>::SetUp();
    if (IsSkipped()) return;
    if (!nccl_buttons().reset) GTEST_SKIP() << "NCCL itself has no buttons";
    nccl_buttons().reset();
  }
  void TearDown() override {
    if (nccl_buttons().reset) nccl_buttons().reset();
    pair_.reset();
    Halting<HeldCudaEngineTest>::TearDown();
  }
  std::unique_ptr<Engine> halting_engine(const Engine::Limits& limits = {}) {
    auto made = std::make_unique<Engine>(options({{"on_suspicion", "halt"}, {"capture_every", "10"}}),
                                         std::make_unique<device::AutoDevice>(1u, staging_bytes), limits);
    add(*made, "weights", *weights_, CKPT_OVERLAPPED);
    add(*made, "statistics", *statistics_, CKPT_SYNCHRONOUS);
    made->restore(stream());
    return made;
  }
  void iterate(Engine& engine, int k) {
    ASSERT_EQ(before_update(engine).status, CKPT_OK) << k;
    update(static_cast<unsigned char>(k));
    snapshot(engine, k);
  }
  // Training's stream waits for the communication, as PyTorch lets it.
  void communicate(bool hangs) {
    nccl_buttons().hang(-1, hangs ? 1 : 0);
    for (const int rank : {0, 1}) pair_->exchange(rank);
    for (const int rank : {0, 1}) ASSERT_TRUE(pair_->becomes_ready(rank));
    const GpuEvent end;
    ASSERT_CUDA(cuEventRecord(end, *pair_->streams[0]));
    ASSERT_CUDA(cuStreamWaitEvent(stream(), end, 0));
  }
  std::optional<NcclPair> pair_;
};

TEST_F(InterposedEngineTest, AgentSeesCommunicationsThatTrainingDoesNotMark) {
  const auto engine = halting_engine();
  pair_.emplace();
  communicate(true);  // after two that connect the ranks
  EXPECT_TRUE(eventually([&] { return agent_->control().comm().on_gpu[3].begun.load() == 3; }));
  EXPECT_NE(agent_->control().comm().on_gpu[3].ended.load(), 3u) << "it hangs";
  nccl_buttons().hang(-1, 0);
  EXPECT_TRUE(eventually([&] { return agent_->control().comm().on_gpu[3].ended.load() == 3; }));
}

TEST_F(InterposedEngineTest, DoesNotMarkCommunicationsTwice) {
  const auto engine = halting_engine();
  engine->comm_begin(0, stream());
  engine->comm_end(0, stream());
  pair_.emplace();
  ASSERT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(agent_->control().comm().on_gpu[2].begun.load(), 0u);
}

TEST_F(InterposedEngineTest, AbortsCommunicatorsAfterTheLateCaptureAndKeepsTensors) {
  const auto engine = halting_engine();
  pair_.emplace();
  for (int k = 0; k <= 3; ++k) {
    communicate(false);
    iterate(*engine, k);
    if (k == 0) {
      ASSERT_EQ(before_update(*engine).status, CKPT_OK);
      ASSERT_TRUE(captured(*engine, 0));
      agent_->grant();
    }
  }
  communicate(true);
  auto update_if_allowed = std::async(std::launch::async, [&] {
    EXPECT_CUDA(cuCtxSetCurrent(context_));
    const ckpt_status status = before_update(*engine).status;
    if (status == CKPT_OK) update(0xEE);
    return status;
  });
  halt(3);
  await(FreezeState::captured, 3);
  EXPECT_EQ(update_if_allowed.get(), CKPT_ERR_HALTED);
  EXPECT_TRUE(eventually([&] { return cuStreamQuery(stream()) == CUDA_SUCCESS; })) << "aborted";
  EXPECT_EQ(stored("weights", CheckpointId(1, 3)), std::vector(main_bytes, std::byte{3}));
  engine->rejoin();
  EXPECT_EQ(engine->restore(stream()).main_tier, CKPT_TIER_LIVE);
  EXPECT_EQ(weights_->read(), std::vector(main_bytes, std::byte{3}));
}

TEST_F(InterposedEngineTest, AbortsNothingBeforeTheLateCaptureEnds) {
  const auto engine = halting_engine();
  pair_.emplace();
  for (int k = 1; k <= 3; ++k) iterate(*engine, k);
  communicate(true);
  buttons().hold(CKPT_DOUBLE_KERNEL, 1);
  halt(3);
  await(FreezeState::capturing, 3);
  EXPECT_EQ(pair_->error(0), nccl::success);
  EXPECT_FALSE(pair_->is_idle(0));
  buttons().hold(CKPT_DOUBLE_KERNEL, 0);
  await(FreezeState::captured, 3);
  EXPECT_TRUE(pair_->becomes_idle(0));
}

TEST_F(InterposedEngineTest, RefusesARejoinDuringAHungAbortUntilItEnds) {
  const auto engine = halting_engine({.abort_ms = 100});
  pair_.emplace();
  for (int k = 1; k <= 3; ++k) iterate(*engine, k);
  communicate(true);
  nccl_buttons().hold_aborts(1);
  halt(3);
  await(FreezeState::captured, 3);
  const Caught refused = caught([&] { engine->rejoin(); });
  EXPECT_EQ(refused.status, CKPT_ERR_TIMEOUT);
  EXPECT_THAT(refused.sentence, HasSubstr("ncclCommAbort() did not return for 2 communicators"));
  nccl_buttons().hold_aborts(0);
  engine->rejoin();
  EXPECT_EQ(engine->restore(stream()).main_tier, CKPT_TIER_LIVE);
}

TEST_F(InterposedEngineTest, WarnsOnceIfNcclIsNeverCalled) {
  world_size_ = "2";
  const auto engine = halting_engine();
  WarningLog warnings(*engine);
  for (int k = 1; k <= 4; ++k) iterate(*engine, k);
  EXPECT_EQ(warnings.take(CKPT_WARNING_INTERPOSE), "");
  iterate(*engine, 5);
  EXPECT_THAT(warnings.take(CKPT_WARNING_INTERPOSE), HasSubstr("no call of NCCL has come through"));
  for (int k = 6; k <= 20; ++k) iterate(*engine, k);
  EXPECT_EQ(warnings.take(CKPT_WARNING_INTERPOSE), "");
}

}  // namespace
}  // namespace ckpt::client
