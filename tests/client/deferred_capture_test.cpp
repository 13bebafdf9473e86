// A snapshot that finds no free slot: its capture begins once the agent grants one, or before_update() skips it.
#include "client/deferred_capture.hpp"

#include <latch>

#include "engine_fixture.hpp"

namespace ckpt::client {
namespace {

using testing::HasSubstr;

// ---- The hand-over alone ----

class HandOver : public testing::Test {
 protected:
  HandOver() { state_.private_.plan = device::Plan({{bytes_.data(), bytes_.size()}}); }
  void offer() { deferred_.offer({CheckpointId(1, 7), &state_, {}}); }
  std::vector<std::byte> kept() const {
    const auto& [data, size_bytes] = deferred_.private_plan().sources().front();
    return {data, data + size_bytes};
  }

  std::vector<std::byte> bytes_ = std::vector<std::byte>(1000, std::byte{1});
  RankState state_;
  DeferredCapture deferred_;
};

TEST_F(HandOver, TrainingThreadTakesBackAnOfferThatHasNotBegun) {
  EXPECT_FALSE(deferred_.take_back()) << "nothing was offered";
  offer();
  EXPECT_TRUE(deferred_.is_open() && deferred_.waits());
  EXPECT_TRUE(deferred_.take_back());
  EXPECT_FALSE(deferred_.is_open() || deferred_.waits());
  deferred_.try_begin([] { return ADD_FAILURE() << "begun", true; });
}

TEST_F(HandOver, CaptureThatHasBegunIsNotTakenBackAndBeginsOnce) {
  offer();
  deferred_.try_begin([] { return true; });
  EXPECT_TRUE(deferred_.is_open() && !deferred_.waits());
  deferred_.try_begin([] { return ADD_FAILURE() << "begun twice", true; });
  EXPECT_FALSE(deferred_.take_back());
  EXPECT_FALSE(deferred_.is_open());
}

TEST_F(HandOver, OfferStaysOpenIfItCouldNotBegin) {
  offer();
  deferred_.try_begin([] { return false; });
  EXPECT_TRUE(deferred_.waits());
  deferred_.try_begin([] { return true; });
  EXPECT_FALSE(deferred_.take_back());
}

TEST_F(HandOver, TakeBackWaitsForAThreadThatIsBeginning) {
  for (const bool begins : {true, false}) {
    offer();
    std::latch is_beginning(1), may_begin(1);
    bool has_begun = false;
    std::thread watcher([&] {
      deferred_.try_begin([&] {
        is_beginning.count_down();
        may_begin.wait();
        has_begun = true;
        return begins;
      });
    });
    is_beginning.wait();
    deferred_.try_begin([] { return ADD_FAILURE() << "begun by two threads", true; });
    std::thread later([&] { may_begin.count_down(); });
    EXPECT_EQ(deferred_.take_back(), !begins);
    EXPECT_TRUE(has_begun);
    later.join();
    watcher.join();
  }
}

TEST_F(HandOver, OneThreadBeginsTheOfferOrTheTrainingThreadTakesItBack) {
  constexpr int rounds = 2'000;
  int begun = 0, taken_back = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&](const std::stop_token& stop) {
        while (!stop.stop_requested()) deferred_.try_begin([&] { return ++begun, true; });  // one at a time
      });
    for (int round = 0; round < rounds; ++round) {
      offer();
      if (round % 2 == 0) std::this_thread::yield();
      taken_back += deferred_.take_back();
    }
  }
  EXPECT_EQ(begun + taken_back, rounds);
}

TEST_F(HandOver, KeepsThePrivateShardWithoutAllocatingAgain) {
  offer();
  const auto* const place = deferred_.private_plan().sources().front().data;
  for (std::byte& byte : bytes_) byte = std::byte{2};
  EXPECT_EQ(kept(), std::vector<std::byte>(1000, std::byte{1}));
  deferred_.take_back();
  offer();
  EXPECT_EQ(kept(), bytes_);
  EXPECT_EQ(deferred_.private_plan().sources().front().data, place);
}

// ---- In an engine ----

class Deferred : public EngineTest {
 protected:
  // From now on every slot is used.
  void begin(std::unique_ptr<Engine> engine) {
    engine_ = std::move(engine);
    register_all(*engine_, tensors_);
    restore(*engine_);
    fill(0);
    ASSERT_EQ(engine_->snapshot(0).status, CKPT_OK);
    ASSERT_EQ(engine_->before_update().status, CKPT_OK);
  }
  void SetUp() override { begin(host_engine()); }

  void fill(std::uint64_t seed) {
    for (auto& tensor : tensors_) tensor.fill(seed);
  }
  void change_private() { tensors_[1].fill(999); }
  void snapshot_defers(std::int64_t k) {
    ASSERT_EQ(engine_->snapshot(k).status, CKPT_OK);
    ASSERT_EQ(engine_->stage(k), CKPT_STAGE_NONE);
  }
  void await_begin(std::int64_t k) { ASSERT_EQ(engine_->wait(k, CKPT_STAGE_CAPTURING, 60'000).status, CKPT_OK); }
  bool is_stored(std::int64_t k) {
    return agent_->piece("rank0", CheckpointId(1, k)) && agent_->piece("rank0.private", CheckpointId(1, k));
  }

  std::vector<TestTensor> tensors_ = {test_tensor("weight", CKPT_F32, {300, 70}),
                                      test_tensor("rng", CKPT_U8, {2501}, CKPT_SYNCHRONOUS)};
  std::unique_ptr<Engine> engine_;
};

TEST_F(Deferred, SnapshotUsesALaterGrantAndHoldsTheStateOfItsCall) {
  for (std::int64_t k = 1; k < 20; ++k) {
    fill(k);
    const auto offered = tensors_;
    snapshot_defers(k);
    EXPECT_EQ(agent_->control().attempted(), k - 1) << "the agent learns of it once it begins or is given up";
    change_private();
    agent_->grant();
    await_begin(k);
    EXPECT_EQ(engine_->stage(k), CKPT_STAGE_CAPTURING);
    ASSERT_EQ(engine_->before_update().status, CKPT_OK);
    for (const auto& tensor : offered) ASSERT_EQ(stored(tensor.name, CheckpointId(1, k)), tensor.bytes) << tensor.name;
  }
  EXPECT_EQ(engine_->stats().snapshots, 20u);
  EXPECT_EQ(engine_->stats().skipped, 0u);
}

TEST_F(Deferred, SnapshotWithoutASlotUntilTheUpdateIsSkippedAndReported) {
  snapshot_defers(1);
  const auto doorbell = agent_->control().trainer_doorbell();
  const Outcome skipped = engine_->before_update();
  EXPECT_EQ(skipped.status, CKPT_SKIPPED);
  EXPECT_THAT(skipped.text, HasSubstr("do not have all their copies yet"));
  EXPECT_EQ(agent_->control().trainer_doorbell(), doorbell + 1);
  EXPECT_EQ(agent_->control().attempted(), 1);
  EXPECT_FALSE(agent_->control().capturing());
  EXPECT_EQ(engine_->before_update().status, CKPT_OK) << "nothing is pending";
  EXPECT_EQ(engine_->wait(1, CKPT_STAGE_CAPTURING, 0).status, CKPT_SKIPPED);
  EXPECT_EQ(engine_->stats().skipped, 1u);
  EXPECT_EQ(engine_->stats().snapshots, 1u);
}

TEST_F(Deferred, SkippedSnapshotLeavesTheNextGrantToTheNextOne) {
  snapshot_defers(1);
  EXPECT_EQ(engine_->before_update().status, CKPT_SKIPPED);
  agent_->grant();
  fill(2);
  EXPECT_EQ(engine_->snapshot(2).status, CKPT_OK);
  EXPECT_EQ(engine_->before_update().status, CKPT_OK);
  EXPECT_FALSE(is_stored(1));
  EXPECT_EQ(stored("rng", CheckpointId(1, 2)), tensors_[1].bytes);
}

TEST_F(Deferred, SnapshotBeforeTheCommonNextIterationIsSkipped) {
  snapshot_defers(1);
  agent_->control().resume_at(3);
  agent_->grant();
  EXPECT_EQ(engine_->before_update().status, CKPT_SKIPPED);
  EXPECT_EQ(engine_->snapshot(2).status, CKPT_SKIPPED);
  EXPECT_EQ(engine_->snapshot(3).status, CKPT_OK);
  EXPECT_EQ(engine_->before_update().status, CKPT_OK);
}

TEST_F(Deferred, FencedTrainerBeginsNoWaitingSnapshot) {
  snapshot_defers(1);
  agent_->control().fence(9);
  agent_->grant();
  EXPECT_EQ(engine_->before_update().status, CKPT_SKIPPED);
  EXPECT_FALSE(is_stored(1));
  EXPECT_EQ(caught([&] { engine_->snapshot(2); }).status, CKPT_ERR_SUPERSEDED);
}

TEST_F(Deferred, DiscardedWaitingSnapshotNeverBegins) {
  snapshot_defers(1);
  engine_->discard();
  EXPECT_EQ(engine_->wait(1, CKPT_STAGE_CAPTURED, 0).status, CKPT_DISCARDED);
  EXPECT_EQ(engine_->stats().discarded, 1u);
  EXPECT_EQ(agent_->control().attempted(), 1);
  EXPECT_EQ(agent_->control().failure_since(0), CKPT_DISCARDED);
  agent_->grant();
  EXPECT_EQ(engine_->before_update().status, CKPT_OK);
  EXPECT_FALSE(is_stored(1));
  EXPECT_EQ(engine_->snapshot(2).status, CKPT_OK);
  EXPECT_EQ(engine_->stage(2), CKPT_STAGE_CAPTURING) << "with the grant that came meanwhile";
}

TEST_F(Deferred, ForgottenUpdateDiscardsTheWaitingSnapshotWithAWarning) {
  WarningLog warnings(*engine_);
  snapshot_defers(1);
  snapshot_defers(2);
  EXPECT_THAT(warnings.take(CKPT_WARNING_FORGOTTEN_UPDATE), HasSubstr("snapshot of iteration 1 was discarded"));
  EXPECT_EQ(engine_->before_update().status, CKPT_SKIPPED);
  snapshot_defers(3);
  EXPECT_EQ(warnings.take(CKPT_WARNING_FORGOTTEN_UPDATE), "") << "a skip needs no warning";
}

TEST_F(Deferred, RefusesToMoveTensorsWhileASnapshotWaits) {
  snapshot_defers(1);
  auto more = test_tensor("more", CKPT_F32, {1});
  EXPECT_THAT(caught([&] { engine_->register_tensor(more.abi()); }).sentence,
              HasSubstr("after snapshot(1) and before before_update()"));
  EXPECT_THAT(caught([&] { engine_->move_tensor("weight", more.bytes.data()); }).sentence, HasSubstr("snapshot(1)"));
  EXPECT_THAT(caught([&] { engine_->unregister_tensor("weight"); }).sentence, HasSubstr("snapshot(1)"));
  EXPECT_EQ(engine_->before_update().status, CKPT_SKIPPED);
  engine_->unregister_tensor("weight");
}

TEST_F(Deferred, ClosingWaitsForTheSlotAndTheCommit) {
  fill(1);
  snapshot_defers(1);
  std::thread agent([&] {
    agent_->grant();
    EXPECT_EQ(engine_->wait(1, CKPT_STAGE_CAPTURED, 60'000).status, CKPT_OK);
    agent_->control().committed(CheckpointId(1, 1));
  });
  engine_->await_last_commit();
  EXPECT_EQ(engine_->stage(1), CKPT_STAGE_COMMITTED);
  agent.join();
  engine_.reset();
  EXPECT_EQ(stored("weight", CheckpointId(1, 1)), tensors_[0].bytes);
}

TEST_F(Deferred, ClosingDoesNotWaitForTheSlotOfAnAgentThatIsGone) {
  snapshot_defers(1);
  agent_.reset();
  engine_->await_last_commit();
  EXPECT_EQ(engine_->wait(1, CKPT_STAGE_CAPTURING, 0).status, CKPT_SKIPPED);
}

TEST_F(Deferred, DeadAgentDoesNotDelayAWaitingSnapshot) {
  snapshot_defers(1);
  agent_.reset();
  EXPECT_EQ(engine_->before_update().status, CKPT_SKIPPED);
  agent_.emplace(directory_.path());
  Outcome taken{CKPT_ERR_NO_AGENT, ""};
  std::int64_t k = 1;
  for (const Deadline deadline = Deadline::in_ms(60'000); taken.status != CKPT_OK && !deadline.passed();) {
    fill(++k);
    caught([&] { engine_->snapshot(k); });
    taken = engine_->wait(k, CKPT_STAGE_CAPTURING, 1);
    engine_->before_update();
  }
  EXPECT_EQ(stored("weight", CheckpointId(1, k)), tensors_[0].bytes);
}

TEST_F(Deferred, WaitingSnapshotUsesTheNextAgentsGrant) {
  fill(1);
  snapshot_defers(1);
  const auto kept = tensors_[1].bytes;
  change_private();
  agent_.reset();
  agent_.emplace(directory_.path());
  await_begin(1);
  EXPECT_EQ(engine_->before_update().status, CKPT_OK);
  EXPECT_EQ(agent_->hellos(), 1);
  EXPECT_EQ(stored("weight", CheckpointId(1, 1)), tensors_[0].bytes);
  EXPECT_EQ(stored("rng", CheckpointId(1, 1)), kept);
}

// The agent may have made other slots. Only its answer tells.
TEST_F(Deferred, NextAgentsGrantWaitsUntilItsSlotsAreMapped) {
  snapshot_defers(1);
  agent_->hold_reserve();
  agent_->hang_up();
  while (agent_->reserves() < 2) std::this_thread::yield();
  agent_->grant();
  EXPECT_EQ(engine_->before_update().status, CKPT_SKIPPED);
  agent_->let_reserve();
}

// Grants come at any moment. Whatever was captured has the state of its call.
TEST_F(Deferred, GrantsAtAnyMomentTearNoSnapshot) {
  const std::jthread granting([&](const std::stop_token& stop) {
    for (unsigned turn = 0; !stop.stop_requested(); ++turn) {
      for (unsigned i = 0; i < turn % 64; ++i) std::this_thread::yield();
      if (agent_->control().grant().sequence == agent_->control().used_grant()) agent_->grant();
    }
  });
  constexpr std::int64_t iterations = 400;
  for (std::int64_t k = 1; k < iterations; ++k) {
    fill(k);
    const auto offered = tensors_;
    ASSERT_EQ(engine_->snapshot(k).status, CKPT_OK);
    change_private();
    if (k % 4 == 0) await_begin(k);
    if (engine_->before_update().status != CKPT_OK) continue;
    tensors_[0].fill(998);
    for (const auto& tensor : offered) ASSERT_EQ(stored(tensor.name, CheckpointId(1, k)), tensor.bytes) << tensor.name;
  }
  const ckpt_stats_t stats = engine_->stats();
  EXPECT_EQ(stats.snapshots + stats.skipped, static_cast<std::uint64_t>(iterations));
  EXPECT_GE(stats.snapshots, static_cast<std::uint64_t>(iterations / 4));
}

class NotDeferred : public Deferred {
 protected:
  void SetUp() override {}
};

TEST_F(NotDeferred, SkipsASnapshotImmediatelyIfTheDeviceCannotStartLate) {
  begin(engine<LateDevice>());
  EXPECT_EQ(engine_->snapshot(1).status, CKPT_SKIPPED);
  EXPECT_EQ(engine_->before_update().status, CKPT_OK);
}

TEST_F(NotDeferred, SkipsASnapshotImmediatelyIfThePrivateShardIsTooLarge) {
  tensors_[1] = test_tensor("rng", CKPT_U8, {(16 << 20) + 1}, CKPT_SYNCHRONOUS);
  begin(host_engine());
  EXPECT_EQ(engine_->snapshot(1).status, CKPT_SKIPPED);
  EXPECT_EQ(engine_->before_update().status, CKPT_OK);
}

}  // namespace
}  // namespace ckpt::client
