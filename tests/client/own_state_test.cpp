// Own state: the private shard of the coming iteration is kept before its update, beside that of the last one.
#include "halt_fixture.hpp"

namespace ckpt::client {
namespace {

class OwnStateTest : public HaltedEngineTest {
 protected:
  TestTensor& weight() { return tensors_[0]; }
  TestTensor& mean() { return tensors_[1]; }

  std::unique_ptr<Engine> engine_with_spare() {
    auto engine = halting_engine();
    iterate_alike(*engine, 0, false);  // the slots are there from now on
    agent_->grant_with_spare();
    return engine;
  }
  // The forward pass changes own state, the update does not.
  void forward(int k) { mean().fill(static_cast<std::uint64_t>(k)); }
  void iterate_alike(Engine& engine, int k, bool has_spare = true) {
    forward(k);
    ASSERT_EQ(engine.before_update().status, CKPT_OK) << k;
    weight().fill(static_cast<std::uint64_t>(k));
    engine.snapshot(k);
    if (has_spare && agent_->control().used_grant() == agent_->control().grant().sequence) agent_->grant_with_spare();
  }
  void train_alike(Engine& engine, int first, int last) {
    for (int k = first; k <= last; ++k) iterate_alike(engine, k);
  }
};

TEST_F(OwnStateTest, IsSealedBeforeTheUpdateBesideTheLastIterations) {
  auto engine = engine_with_spare();
  train_alike(*engine, 1, 4);
  const auto last = mean().bytes;
  forward(5);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(stored("mean", CheckpointId(1, 4)), last);
  EXPECT_EQ(stored("mean", CheckpointId(1, 5)), mean().bytes);
  EXPECT_EQ(agent_->control().attempted(), 4) << "nobody takes the iteration for one that was offered";
  EXPECT_FALSE(is_stored("rank0", 4));
}

TEST_F(OwnStateTest, StaysSealedWhenTheUpdateHasEnded) {
  auto engine = engine_with_spare();
  train_alike(*engine, 1, 4);
  forward(5);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  weight().fill(5);
  engine->snapshot(5);
  EXPECT_EQ(stored("mean", CheckpointId(1, 5)), mean().bytes);
  halt(5);
  await(FreezeState::captured, 5);
  expect_stored(5);
}

TEST_F(OwnStateTest, IsNotSealedEarlyIfTheLastUpdateChangedIt) {
  auto engine = engine_with_spare();
  train_alike(*engine, 1, 4);
  forward(5);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  fill(50);  // the update changes it, too
  engine->snapshot(5);
  EXPECT_EQ(stored("mean", CheckpointId(1, 5)), mean().bytes) << "the older bytes are written over";
  forward(6);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_FALSE(is_stored("rank0.private", 6));
  weight().fill(6);
  engine->snapshot(6);
  EXPECT_EQ(stored("mean", CheckpointId(1, 6)), mean().bytes);
  forward(7);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_TRUE(is_stored("rank0.private", 7)) << "it is trusted again";
}

TEST_F(OwnStateTest, IsNotSealedEarlyIfItIsNotReady) {
  auto engine = engine_with_spare();
  train_alike(*engine, 1, 4);
  engine->own_not_ready();
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_FALSE(is_stored("rank0.private", 5));
  EXPECT_TRUE(is_stored("rank0.private", 4));
  forward(5);
  engine->snapshot(5);
  forward(6);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_TRUE(is_stored("rank0.private", 6)) << "that counts for one update only";
}

TEST_F(OwnStateTest, IsNotSealedForASecondUpdateInOneIteration) {
  auto engine = engine_with_spare();
  train_alike(*engine, 1, 4);
  forward(5);
  const auto first = mean().bytes;
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  mean().fill(51);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(stored("mean", CheckpointId(1, 5)), first);
  EXPECT_TRUE(is_stored("rank0.private", 4)) << "beside it";
}

TEST_F(OwnStateTest, IsNotSealedEarlyWithoutASecondSlot) {
  auto engine = halting_engine();
  for (int k = 0; k <= 4; ++k) {
    iterate_alike(*engine, k, false);
    if (agent_->control().used_grant() == agent_->control().grant().sequence) agent_->grant();
  }
  forward(5);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_FALSE(is_stored("rank0.private", 5));
  EXPECT_TRUE(is_stored("rank0.private", 4));
}

TEST_F(OwnStateTest, IsNotSealedEarlyIfIterationsAreNotNumberedOneByOne) {
  auto engine = engine_with_spare();
  train_alike(*engine, 1, 4);
  iterate_alike(*engine, 8);
  forward(9);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_FALSE(is_stored("rank0.private", 9));
}

TEST_F(OwnStateTest, CaptureUsesItsSlotAndLeavesTheOtherToTheRank) {
  auto engine = engine_with_spare();
  train_alike(*engine, 1, 9);
  for (int k = 10; k <= 40; k += 10) {
    iterate_alike(*engine, k);
    forward(k + 1);
    ASSERT_EQ(engine->before_update().status, CKPT_OK);
    EXPECT_EQ(agent_->control().used_grant(), agent_->control().grant().sequence);
    EXPECT_TRUE(is_stored("rank0", k)) << k;
    EXPECT_TRUE(is_stored("rank0.private", k)) << k;
    EXPECT_TRUE(is_stored("rank0.private", k + 1)) << "it needs no further grant; " << k;
    agent_->grant_with_spare();
    weight().fill(static_cast<std::uint64_t>(k) + 1);
    engine->snapshot(k + 1);
    train_alike(*engine, k + 2, k + 9);
  }
}

TEST_F(OwnStateTest, IsNotSealedEarlyOnceANewerIncarnationHasBegun) {
  auto engine = engine_with_spare();
  train_alike(*engine, 1, 4);
  agent_->control().fence(2);
  forward(5);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_FALSE(is_stored("rank0.private", 5));
}

TEST_F(OwnStateTest, IsNotCombinedWithAGrantWithoutItsSlot) {
  auto engine = engine_with_spare();
  train_alike(*engine, 1, 9);
  for (const int k : {10, 11}) iterate_alike(*engine, k, false);  // the capture of iteration 10 has used the grant
  halt(11);
  await(FreezeState::capturing, 11);
  const arena::Grant last = agent_->control().grant();
  const auto other = static_cast<std::uint8_t>(3 - last.slots[1] - *last.spare);
  agent_->control().grant({last.sequence + 1, {other, other, other, other}});
  await(FreezeState::refused, 11);
  EXPECT_FALSE(is_stored("rank0", 11));
}

TEST_F(OwnStateTest, IsKeptWhileNoGrantIsOpen) {
  auto engine = engine_with_spare();
  train_alike(*engine, 1, 9);
  iterate_alike(*engine, 10, false);
  for (int k = 11; k <= 13; ++k) {
    iterate_alike(*engine, k, false);  // the capture of iteration 10 has used the grant
    EXPECT_EQ(stored("mean", CheckpointId(1, k)), mean().bytes) << k;
  }
  halt(13);
  await(FreezeState::capturing, 13);
  agent_->grant_with_spare();
  await(FreezeState::captured, 13);
  expect_stored(13);
}

}  // namespace
}  // namespace ckpt::client
