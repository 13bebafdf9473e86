// An engine that obeys halts, for tests. The test says as the agent that the job is halted.
#pragma once

#include "engine_fixture.hpp"

namespace ckpt::client {

inline constexpr std::uint64_t halt_number = 7;

// Says as the agent that the job is halted, and looks at what the rank answers.
template <class Base>
class Halting : public Base {
 protected:
  void halt(std::optional<std::int64_t> iteration) { this->agent_->control().halt({halt_number, iteration}); }
  void await(FreezeState state, std::int64_t iteration) {
    const arena::FreezeWords wanted{halt_number, static_cast<std::uint8_t>(state), iteration};
    const Deadline deadline = Deadline::in_ms(20'000);
    while (this->agent_->control().freeze() != wanted) {
      ASSERT_FALSE(deadline.passed()) << int{this->agent_->control().freeze().state} << " at "
                                      << this->agent_->control().freeze().iteration;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  bool is_stored(const char* shard, int k) { return this->agent_->piece(shard, CheckpointId(1, k)).has_value(); }
};

class HaltedEngineTest : public Halting<EngineTest> {
 protected:
  std::vector<TestTensor> tensors_ = {test_tensor("weight", CKPT_F32, {300, 700}),
                                      test_tensor("mean", CKPT_F32, {170}, CKPT_SYNCHRONOUS)};

  std::unique_ptr<Engine> halting_engine(const char* capture_every = "10") {
    auto engine = host_engine({{"on_suspicion", "halt"}, {"capture_every", capture_every}});
    register_all(*engine, tensors_);
    restore(*engine);
    return engine;
  }
  void fill(int k) {
    for (auto& tensor : tensors_) tensor.fill(static_cast<std::uint64_t>(k));
  }
  // One update, up to the end of its snapshot.
  void iterate(Engine& engine, int k) {
    ASSERT_EQ(engine.before_update().status, CKPT_OK) << k;
    fill(k);
    engine.snapshot(k);
    if (agent_->control().used_grant() == agent_->control().grant().sequence) agent_->grant();
  }
  void train_until(Engine& engine, int k) {
    for (int i = 0; i <= k; ++i) iterate(engine, i);
  }
  void expect_stored(int k) {
    for (const auto& tensor : tensors_) EXPECT_EQ(stored(tensor.name, CheckpointId(1, k)), tensor.bytes) << tensor.name;
  }
  // For a capture that another thread begins.
  void await_stored(const char* shard, int k) {
    const Deadline deadline = Deadline::in_ms(20'000);
    while (!is_stored(shard, k)) {
      ASSERT_FALSE(deadline.passed());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
};

}  // namespace ckpt::client
