// Restores of pieces that arrive while the rank waits.
#include <sys/uio.h>
#include <unistd.h>

#include "engine_fixture.hpp"
#include "kernels/digest.hpp"

namespace ckpt::client {
namespace {

using testing::HasSubstr;

class EarlyRestoreTest : public EngineTest {
 protected:
  static constexpr std::size_t leaf = kernels::leaf_size_bytes;

  // An earlier incarnation leaves iterations 0 to 2. Then the newest main shard arrives once more.
  EarlyRestoreTest() {
    auto engine = host_engine();
    register_all(*engine, tensors_);
    restore(*engine);
    for (std::uint64_t k = 0; k < 3; ++k) {
      fill(k);
      EXPECT_EQ(engine->snapshot(static_cast<std::int64_t>(k)).status, CKPT_OK);
      EXPECT_EQ(engine->before_update().status, CKPT_OK);
      agent_->grant();
    }
    engine.reset();
    fill(99);
    arriving_ = &agent_->arrive("rank0", CheckpointId(1, 2));
  }
  ~EarlyRestoreTest() override {
    agent_->let_restore();
    if (restoring_.joinable()) restoring_.join();
  }

  void fill(std::uint64_t seed) {
    for (TestTensor& tensor : tensors_) tensor.fill(seed);
  }
  void begin_restore(const OptionPairs& more = {}) {
    engine_ = host_engine(more);
    register_and_restore();
  }
  // Asks before any tensor is registered, as a program does that makes its tensors after the layout.
  void ask_for_layout() {
    engine_ = host_engine();
    layout_ = nlohmann::json::parse(engine_->stored_layout());
  }
  void register_and_restore() {
    register_all(*engine_, tensors_);
    restoring_ = std::thread([this] { caught_ = caught([&] { restored_ = restore(*engine_); }); });
  }
  void finish_restore() {
    agent_->await_held_restore();
    agent_->let_restore();
    restoring_.join();
  }
  void arrive_whole() {
    arriving_->land(10 * leaf + 5);
    arriving_->seal();
  }
  // Waits until a tensor holds these bytes of the piece. The kernel reads them, because the engine may be writing.
  bool come_to_hold(std::size_t from, std::size_t until) {
    const auto& wanted = arriving_->piece().bytes;
    std::vector<std::byte> found(until - from);
    for (int attempt = 0; attempt < 20'000; ++attempt) {
      const iovec here{found.data(), found.size()}, there{tensors_[0].bytes.data() + from, found.size()};
      if (::process_vm_readv(::getpid(), &here, 1, &there, 1, 0) != static_cast<ssize_t>(found.size())) return false;
      if (std::equal(found.begin(), found.end(), wanted.begin() + static_cast<std::ptrdiff_t>(from))) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  void expect_tensors_of(std::uint64_t seed) {
    for (TestTensor expected : tensors_) {
      const auto found = expected.bytes;
      expected.fill(seed);
      EXPECT_EQ(found, expected.bytes) << expected.name;
    }
  }

  // One tensor per shard, so that its bytes are those of the piece.
  std::vector<TestTensor> tensors_ = {test_tensor("w", CKPT_U8, {10 * leaf + 5}),
                                      test_tensor("rng", CKPT_U8, {13}, CKPT_SYNCHRONOUS)};
  FakeAgent::Arriving* arriving_ = nullptr;
  std::unique_ptr<Engine> engine_;
  nlohmann::json layout_;
  std::thread restoring_;
  Caught caught_;
  ckpt_restored restored_ = CKPT_RESTORED_INIT;
};

TEST_F(EarlyRestoreTest, LoadsTheFirstHalfOfAPieceWhileTheSecondIsOnItsWay) {
  begin_restore();
  arriving_->land(5 * leaf);
  EXPECT_TRUE(come_to_hold(0, 5 * leaf));
  arrive_whole();
  finish_restore();
  EXPECT_EQ(caught_.sentence, "");
  EXPECT_EQ(restored_.iteration, 2);
  EXPECT_EQ(restored_.bytes, 10 * leaf + 5 + 13);
  expect_tensors_of(2);
}

TEST_F(EarlyRestoreTest, GivesExactBytesAfterAFetchSwitchesItsSource) {
  begin_restore();
  arriving_->land(5 * leaf);
  EXPECT_TRUE(come_to_hold(0, 5 * leaf));
  arriving_->fail();
  arriving_->begin();  // the agent fetches it anew
  agent_->tell_arrivals();
  arriving_->land(7 * leaf);
  EXPECT_TRUE(come_to_hold(5 * leaf, 7 * leaf));
  arrive_whole();
  finish_restore();
  EXPECT_EQ(caught_.sentence, "");
  expect_tensors_of(2);
}

TEST_F(EarlyRestoreTest, AsksTheNextAgentIfTheAgentDiesDuringARestore) {
  begin_restore();
  arriving_->land(5 * leaf);
  EXPECT_TRUE(come_to_hold(0, 5 * leaf));
  arrive_whole();
  agent_->die();
  restoring_.join();
  EXPECT_EQ(caught_.sentence, "");
  EXPECT_EQ(agent_->hellos(), 3);
  expect_tensors_of(2);
}

TEST_F(EarlyRestoreTest, NoticesALeafDamagedAfterItsVerification) {
  begin_restore();
  arriving_->land(2 * leaf);
  EXPECT_TRUE(come_to_hold(0, 2 * leaf));
  arriving_->write(10 * leaf + 5);
  arriving_->damage(4 * leaf + 1);
  arriving_->seal();
  finish_restore();
  EXPECT_EQ(caught_.sentence, "");
  ASSERT_EQ(agent_->corrupt_reports().size(), 1u);
  EXPECT_EQ(agent_->corrupt_reports().front().at("leaf"), 4);
  EXPECT_EQ(restored_.iteration, 1);
  expect_tensors_of(1);
}

// A stopped agent says nothing, and nothing arrives.
TEST_F(EarlyRestoreTest, RestoreFailsAtItsDeadlineIfTheAgentHangs) {
  begin_restore({{"restore_timeout_ms", "1"}});
  arriving_->land(5 * leaf);
  restoring_.join();
  EXPECT_EQ(caught_.status, CKPT_ERR_TIMEOUT);
  EXPECT_THAT(caught_.sentence, HasSubstr("the agent gave no answer to \"restore\""));
}

TEST_F(EarlyRestoreTest, RefusesAFreshStartAfterLoadingPartOfALostCheckpoint) {
  begin_restore();
  arriving_->land(5 * leaf);
  EXPECT_TRUE(come_to_hold(0, 5 * leaf));
  agent_->lose_everything();
  finish_restore();
  EXPECT_EQ(caught_.status, CKPT_ERR_LOST);
  EXPECT_THAT(caught_.sentence, HasSubstr("a checkpoint was lost while it was being loaded"));
}

TEST_F(EarlyRestoreTest, FillsTensorsThatWereMadeFromAnEarlyLayout) {
  agent_->tell_whole("rank0.private", CheckpointId(1, 2));
  ask_for_layout();
  EXPECT_EQ(layout_.at("iteration"), 2);
  EXPECT_EQ(layout_.at("main").at("w").at("shape"), nlohmann::json({10 * leaf + 5}));
  EXPECT_EQ(layout_.at("private").at("rng").at("shape"), nlohmann::json({13}));
  EXPECT_EQ(layout_.at("shards"), nlohmann::json({{"main", "rank0"}, {"private", "rank0.private"}}));
  register_and_restore();
  arriving_->land(5 * leaf);
  EXPECT_TRUE(come_to_hold(0, 5 * leaf));
  arrive_whole();
  finish_restore();
  EXPECT_EQ(caught_.sentence, "");
  EXPECT_EQ(restored_.incarnation, layout_.at("incarnation"));
  expect_tensors_of(2);
}

TEST_F(EarlyRestoreTest, RefusesToRestoreAnEarlyLayoutOfALostCheckpoint) {
  agent_->tell_whole("rank0.private", CheckpointId(1, 2));
  ask_for_layout();
  EXPECT_TRUE(layout_.at("found"));
  register_and_restore();
  agent_->lose_everything();
  finish_restore();
  EXPECT_EQ(caught_.status, CKPT_ERR_LOST);
  EXPECT_THAT(caught_.sentence, HasSubstr("that stored_layout() described was lost before all of it was here"));
  EXPECT_FALSE(nlohmann::json::parse(engine_->stored_layout()).at("found"));
  expect_tensors_of(99);
}

TEST_F(EarlyRestoreTest, RestoresAnOlderCheckpointOfTheSameLayout) {
  agent_->tell_whole("rank0.private", CheckpointId(1, 2));
  ask_for_layout();
  register_and_restore();
  arriving_->land(5 * leaf);
  EXPECT_TRUE(come_to_hold(0, 5 * leaf));
  arriving_->fail();
  finish_restore();
  EXPECT_EQ(caught_.sentence, "");
  EXPECT_EQ(restored_.iteration, 1);
  expect_tensors_of(1);
}

TEST_F(EarlyRestoreTest, LoadsAShardTakenOverAfterAnEarlyLayout) {
  agent_->tell_whole("rank0.private", CheckpointId(1, 2));
  ask_for_layout();
  std::vector<std::byte> taken(10 * leaf + 5);
  restoring_ =
      std::thread([&] { caught_ = caught([&] { engine_->load_taken("rank0", taken.data(), taken.size()); }); });
  agent_->await_held_restore();
  arrive_whole();
  finish_restore();
  EXPECT_EQ(caught_.sentence, "");
  EXPECT_EQ(taken, arriving_->piece().bytes);
}

// Its slot is named, but its manifest never comes.
TEST_F(EarlyRestoreTest, ReturnsTheLayoutWithTheFinalAnswerIfItDoesNotArrive) {
  agent_->tell_whole("rank0.private", CheckpointId(1, 2));
  arriving_->fail();
  restoring_ = std::thread([&] { ask_for_layout(); });
  finish_restore();
  EXPECT_EQ(layout_.at("iteration"), 1);
}

TEST_F(EarlyRestoreTest, WithholdsTheLayoutUntilBothShardsAreNamed) {
  restoring_ = std::thread([&] { ask_for_layout(); });
  agent_->await_held_restore();
  EXPECT_TRUE(layout_.is_null());
  arrive_whole();
  finish_restore();
  EXPECT_EQ(layout_.at("iteration"), 2);
}

TEST_F(EarlyRestoreTest, FreshStartKeepsTheTensorsIfNothingHasArrived) {
  begin_restore();
  agent_->lose_everything();
  finish_restore();
  EXPECT_EQ(caught_.sentence, "");
  EXPECT_EQ(restored_.found, 0);
  expect_tensors_of(99);
}

}  // namespace
}  // namespace ckpt::client
