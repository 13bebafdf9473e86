#include "engine_fixture.hpp"

namespace ckpt::client {
namespace {

using testing::HasSubstr;

using SnapshotTest = EngineTest;

std::vector<TestTensor> mixed_tensors() {
  return {test_tensor("weight", CKPT_F32, {300, 70}),
          test_tensor("bias", CKPT_BF16, {33}),
          test_tensor("scale", CKPT_F64, {}),
          test_tensor("mask", CKPT_BOOL, {5, 3}),
          test_tensor("none", CKPT_F32, {0, 4}),
          test_tensor("step", CKPT_I64, {}),
          test_tensor("mean", CKPT_F32, {17}, CKPT_SYNCHRONOUS),
          test_tensor("rng", CKPT_U8, {2501}, CKPT_SYNCHRONOUS)};
}

TEST_F(SnapshotTest, CheckpointHoldsTheBytesOfItsIteration) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  ASSERT_EQ(restore(*engine).next_iteration, 0);
  for (int k = 0; k < 40; ++k) {
    for (auto& tensor : tensors) tensor.fill(k);
    if (k % 7 == 3) {  // a tensor moves
      auto moved = tensors[0].bytes;
      tensors[0].bytes.swap(moved);
      engine->move_tensor("weight", tensors[0].bytes.data());
    }
    if (k == 20) {  // lazily created state
      tensors.push_back(test_tensor("late", CKPT_F32, {100}));
      tensors.back().fill(k);
      engine->register_tensor(tensors.back().abi());
    }
    ASSERT_EQ(engine->snapshot(k).status, CKPT_OK);
    ASSERT_EQ(engine->stage(k), CKPT_STAGE_CAPTURING);
    ASSERT_EQ(engine->before_update().status, CKPT_OK);
    ASSERT_EQ(engine->stage(k), CKPT_STAGE_CAPTURED);
    for (const auto& tensor : tensors)
      ASSERT_EQ(stored(tensor.name, CheckpointId(1, k)), tensor.bytes) << tensor.name << k;
    agent_->grant();
  }
  EXPECT_EQ(engine->stats().snapshots, 40u);
}

TEST_F(SnapshotTest, CapturesSynchronousTensorsBeforeTheNextForwardPass) {
  auto engine = this->engine<LateDevice>();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  for (int k = 0; k < 5; ++k) {
    for (auto& tensor : tensors) tensor.fill(k);
    const auto before = tensors;
    ASSERT_EQ(engine->snapshot(k).status, CKPT_OK);
    // The next forward pass, while nothing of the main shard is copied yet.
    for (auto& tensor : tensors)
      if (tensor.capture == CKPT_SYNCHRONOUS) tensor.fill(1000 + k);
    ASSERT_EQ(engine->before_update().status, CKPT_OK);
    for (auto& tensor : tensors) tensor.fill(2000 + k);
    for (const auto& tensor : before) EXPECT_EQ(stored(tensor.name, CheckpointId(1, k)), tensor.bytes) << tensor.name;
    agent_->grant();
  }
}

TEST_F(SnapshotTest, DiscardsASnapshotWhoseSlotSomethingElseSealed) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  agent_->seal_empty_slots();
  const Outcome outcome = engine->before_update();
  EXPECT_EQ(outcome.status, CKPT_DISCARDED);
  EXPECT_THAT(outcome.text, HasSubstr("without being emptied first"));
  EXPECT_EQ(engine->stage(0), CKPT_STAGE_NONE);
  for (auto& tensor : tensors) tensor.fill(1);
  ASSERT_EQ(engine->snapshot(1).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  for (const auto& tensor : tensors) EXPECT_EQ(stored(tensor.name, CheckpointId(1, 1)), tensor.bytes) << tensor.name;
}

TEST_F(SnapshotTest, ForgottenBeforeUpdateDiscardsOnlyThatCheckpoint) {
  auto engine = this->engine<LateDevice>();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  for (auto& tensor : tensors) tensor.fill(7);
  WarningLog warnings(*engine);
  const Outcome second = engine->snapshot(1);
  EXPECT_EQ(second.status, CKPT_OK);
  EXPECT_STREQ(second.text, "");
  EXPECT_THAT(warnings.take(CKPT_WARNING_FORGOTTEN_UPDATE), HasSubstr("before_update() was not called"));
  EXPECT_EQ(engine->wait(0, CKPT_STAGE_CAPTURED, 0).status, CKPT_DISCARDED);
  EXPECT_EQ(engine->stage(0), CKPT_STAGE_NONE);
  EXPECT_EQ(engine->stats().discarded, 1u);
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_FALSE(agent_->piece("rank0", CheckpointId(1, 0)));
  EXPECT_FALSE(agent_->piece("rank0.private", CheckpointId(1, 0)));
  EXPECT_EQ(stored("weight", CheckpointId(1, 1)), tensors[0].bytes);
  EXPECT_EQ(engine->before_update().status, CKPT_OK);  // nothing pending: nothing to do
}

TEST_F(SnapshotTest, SkipsTheIterationWithoutAGrantAndNotifiesTheAgent) {
  auto engine = this->engine<LateDevice>();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  const auto doorbell = agent_->control().trainer_doorbell();
  EXPECT_EQ(engine->snapshot(1).status, CKPT_SKIPPED);
  EXPECT_EQ(agent_->control().trainer_doorbell(), doorbell + 1);
  EXPECT_EQ(agent_->control().attempted(), 1);
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(engine->wait(1, CKPT_STAGE_COMMITTED, 0).status, CKPT_SKIPPED);
  agent_->grant();
  agent_->control().resume_at(4);
  EXPECT_EQ(engine->snapshot(2).status, CKPT_SKIPPED);
  EXPECT_EQ(engine->snapshot(3).status, CKPT_SKIPPED);
  EXPECT_EQ(engine->snapshot(4).status, CKPT_OK);
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(engine->stats().skipped, 3u);
  EXPECT_EQ(engine->stats().snapshots, 2u);
}

TEST_F(SnapshotTest, WaitReturnsWhenTheCheckpointIsCommitted) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(engine->wait(0, CKPT_STAGE_CAPTURED, 0).status, CKPT_OK);
  EXPECT_EQ(engine->wait(0, CKPT_STAGE_COMMITTED, 1).status, CKPT_ERR_TIMEOUT);
  std::thread waiter([&] { EXPECT_EQ(engine->wait(0, CKPT_STAGE_COMMITTED, 10'000).status, CKPT_OK); });
  agent_->control().committed(CheckpointId(1, 0));
  waiter.join();
  EXPECT_EQ(engine->stage(0), CKPT_STAGE_COMMITTED);
  EXPECT_EQ(engine->stats().committed, 1u);
  EXPECT_EQ(engine->stats().committed_iteration, 0);
  EXPECT_GT(engine->stats().commit_ms, 0);
  EXPECT_EQ(engine->wait(-1, CKPT_STAGE_COMMITTED, 0).status, CKPT_ERR_INVALID);
}

TEST_F(SnapshotTest, SnapshotIsDurableOnceStorageHasACheckpointOfTheIncarnation) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  agent_->control().stored(CheckpointId(7, 3));  // of another incarnation
  agent_->control().committed(CheckpointId(1, 0));
  ASSERT_EQ(engine->wait(0, CKPT_STAGE_COMMITTED, 10'000).status, CKPT_OK);
  EXPECT_EQ(engine->stage(0), CKPT_STAGE_COMMITTED);
  EXPECT_THAT(engine->wait(0, CKPT_STAGE_DURABLE, 1).text, HasSubstr("not on storage yet"));
  std::thread waiter([&] { EXPECT_EQ(engine->wait(0, CKPT_STAGE_DURABLE, 10'000).status, CKPT_OK); });
  agent_->control().stored(CheckpointId(1, 0));
  waiter.join();
  EXPECT_EQ(engine->stage(0), CKPT_STAGE_DURABLE);
  EXPECT_EQ(engine->stats().durable_iteration, 0);
}

TEST_F(SnapshotTest, FencedTrainerTakesNoSnapshots) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  agent_->grant();
  agent_->control().fence(9);
  const Caught fenced = caught([&] { engine->snapshot(1); });
  EXPECT_EQ(fenced.status, CKPT_ERR_SUPERSEDED);
  EXPECT_THAT(fenced.sentence, HasSubstr("incarnation 9"));
  EXPECT_FALSE(agent_->piece("rank0", CheckpointId(1, 1)));
  EXPECT_EQ(engine->wait(0, CKPT_STAGE_COMMITTED, 0).status, CKPT_ERR_SUPERSEDED) << "said already";
}

TEST_F(SnapshotTest, TrainerFencedWithoutANewerIncarnationMustRestart) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  agent_->control().fence(arena::fenced_without_incarnation);
  const auto refused = caught([&] { engine->snapshot(0); });
  EXPECT_EQ(refused.status, CKPT_ERR_SUPERSEDED);
  EXPECT_THAT(refused.sentence, HasSubstr("restart the rank"));
}

// Takes snapshots from `iteration` on until one fails in this way.
Caught first_failure(Engine& engine, ckpt_status status, std::int64_t iteration) {
  Caught failed;
  for (const Deadline deadline = Deadline::in_ms(60'000); failed.status != status && !deadline.passed(); ++iteration) {
    failed = caught([&] { engine.snapshot(iteration); });
    engine.before_update();
    std::this_thread::yield();
  }
  return failed;
}

TEST_F(SnapshotTest, ReportsThatTheAgentDoesNotKnowTheTrainer) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
  agent_->answer_with("hello", {{"status", CKPT_ERR_SUPERSEDED}, {"message", "this node does not know you"}});
  agent_->hang_up();
  EXPECT_THAT(first_failure(*engine, CKPT_ERR_SUPERSEDED, 1).sentence, HasSubstr("this node does not know you"));
  EXPECT_EQ(engine->wait(0, CKPT_STAGE_COMMITTED, 60'000).status, CKPT_ERR_SUPERSEDED);
  EXPECT_EQ(agent_->hellos(), 2) << "it is no use to ask again";
}

TEST_F(SnapshotTest, EngineWithoutAConnectionStillSaysGoodbye) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  agent_->answer_with("hello", {{"status", CKPT_ERR_SYSTEM}, {"message", "too many open files"}});
  agent_->hang_up();
  first_failure(*engine, CKPT_ERR_NO_AGENT, 0);
  engine.reset();
  for (const Deadline deadline = Deadline::in_ms(60'000); agent_->last_bye().is_null() && !deadline.passed();)
    std::this_thread::yield();
  ASSERT_FALSE(agent_->last_bye().is_null());
  EXPECT_EQ(agent_->last_bye().at("instance"), agent_->last_hello().at("instance"));
}

TEST_F(SnapshotTest, HelloListsTheOpenEnginesOfTheProcess) {
  auto first = host_engine();
  const auto instance = agent_->last_hello().at("instance");
  EXPECT_EQ(agent_->last_hello().at("open_engines"), FakeAgent::Json::array({instance}));
  auto second = host_engine();
  EXPECT_EQ(agent_->last_hello().at("open_engines").size(), 2u);
  first.reset();
  auto third = host_engine();
  const auto hello = agent_->last_hello();
  EXPECT_EQ(hello.at("open_engines").size(), 2u);
  for (const auto& open : hello.at("open_engines")) EXPECT_NE(open, instance);
}

// Whoever writes where a file was cut off is killed, and training with it.
TEST_F(SnapshotTest, GivesUpTruncatedSlots) {
  AgentLink link(options(), [](const arena::Control&) { return AgentLink::Look::later; });
  link.reserve({{{"rank0", 100'000, 500}, {"rank0.private", 1000, 500}}, ""});
  const AgentSession session = link.session();
  ASSERT_NE(session.slots, nullptr);
  ASSERT_EQ(::ftruncate(session.slots->front().fd(), 4096), 0);
  for (const Deadline deadline = Deadline::in_ms(60'000); link.session().slots != nullptr && !deadline.passed();)
    std::this_thread::yield();
  EXPECT_EQ(link.session().slots, nullptr) << "the next snapshot asks for others";
}

TEST_F(SnapshotTest, DiscardedSnapshotIsNeverPublished) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  engine->discard();  // nothing is pending
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  engine->discard();
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(engine->wait(0, CKPT_STAGE_CAPTURED, 0).status, CKPT_DISCARDED);
  EXPECT_EQ(engine->stats().discarded, 1u);
  engine->unregister_tensor("weight");  // no capture is under way
  ASSERT_EQ(engine->snapshot(1).status, CKPT_OK) << "the grant was not used";
  engine->discard();
  engine.reset();
  EXPECT_FALSE(agent_->piece("rank0", CheckpointId(1, 0)));
  EXPECT_FALSE(agent_->piece("rank0", CheckpointId(1, 1)));
}

bool captures(Engine& engine, std::vector<TestTensor>& tensors, std::int64_t k) {
  for (auto& tensor : tensors) tensor.fill(static_cast<std::uint64_t>(k));
  Outcome taken{CKPT_ERR_NO_AGENT, ""};
  caught([&] { taken = engine.snapshot(k); });
  std::this_thread::yield();
  const Outcome captured = engine.before_update();
  return taken.status == CKPT_OK && captured.status == CKPT_OK;
}

TEST_F(SnapshotTest, TrainingContinuesWithoutAnAgentUntilTheNextOne) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  agent_.reset();  // dies while a capture is pending
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
  // Found out within a few looks of the watcher; each iteration until then is skipped.
  std::int64_t k = 1;
  Caught failed;
  while (failed.status != CKPT_ERR_NO_AGENT) {
    bool is_pending = false;
    failed = caught([&] { is_pending = engine->snapshot(k).status == CKPT_OK; });
    EXPECT_EQ(engine->before_update().status, is_pending ? CKPT_SKIPPED : CKPT_OK);
    ++k;
    std::this_thread::yield();
  }
  EXPECT_THAT(failed.sentence, HasSubstr("agent"));

  agent_.emplace(directory_.path());
  EXPECT_TRUE(agent_->piece("rank0", CheckpointId(1, 0)));  // what was captured is still there
  while (!captures(*engine, tensors, k)) ++k;
  EXPECT_EQ(stored("weight", CheckpointId(1, k)), tensors[0].bytes);
  EXPECT_EQ(agent_->last_hello().at("incarnation"), 1);
}

// Counts how often slots are mapped anew, which takes a GPU's driver as long as pinning them.
class CountingDevice : public device::HostDevice {
 public:
  explicit CountingDevice(int& attached) : HostDevice(1), attached_(attached) {}
  void attach(const std::vector<device::Range>& ranges, const device::Owner&) override {
    attached_ += ranges.empty() ? 0 : 1;
  }
  void attach_also(const device::Range&, const device::Owner&) override { ++attached_; }

 private:
  int& attached_;
};

class SlotsOfTheNextAgent : public SnapshotTest {
 protected:
  void SetUp() override {
    SnapshotTest::SetUp();
    engine_ = engine<CountingDevice>({}, std::ref(attached_));
    register_all(*engine_, tensors_);
    restore(*engine_);
    snapshot_once(0);
  }
  // When there is an agent and a grant.
  void snapshot_once(std::int64_t k) {
    while (!captures(*engine_, tensors_, k)) ++k;
    last_ = k;
  }

  int attached_ = 0;
  std::vector<TestTensor> tensors_ = mixed_tensors();
  std::unique_ptr<Engine> engine_;
  std::int64_t last_ = 0;
};

TEST_F(SlotsOfTheNextAgent, StayMappedIfItTakesThemOver) {
  agent_.reset();
  agent_.emplace(directory_.path());
  snapshot_once(1);
  EXPECT_EQ(agent_->hellos(), 1);
  EXPECT_EQ(attached_, 1);
  EXPECT_EQ(stored("weight", CheckpointId(1, last_)), tensors_[0].bytes);
}

TEST_F(SlotsOfTheNextAgent, AreMappedAgainIfOneOfThemWasReplaced) {
  agent_.reset();
  for (const auto& file : std::filesystem::directory_iterator(directory_.path() + "/job/node"))
    if (file.path().extension() == ".segment") {
      std::filesystem::remove(file);
      break;
    }
  agent_.emplace(directory_.path());
  snapshot_once(1);
  EXPECT_EQ(attached_, 2);
  EXPECT_EQ(stored("weight", CheckpointId(1, last_)), tensors_[0].bytes);
}

TEST_F(SnapshotTest, CapturesGrownStateInLargerSlots) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  agent_->grant();
  auto large = test_tensor("large", CKPT_F32, {1000, 1000});
  large.fill(1);
  engine->register_tensor(large.abi());
  ASSERT_EQ(engine->snapshot(1).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(stored("large", CheckpointId(1, 1)), large.bytes);
}

TEST_F(SnapshotTest, ReservesMemoryAtRestoreInsteadOfTheFirstSnapshot) {
  auto engine = host_engine();
  auto large = test_tensor("large", CKPT_F32, {2000, 1000});
  large.fill(1);
  engine->register_tensor(large.abi());
  restore(*engine);
  for (const Deadline deadline = Deadline::in_ms(60'000); agent_->reserves() == 0 && !deadline.passed();)
    std::this_thread::yield();
  EXPECT_EQ(agent_->reserves(), 1);
  std::int64_t k = 0;
  while (engine->snapshot(k).status == CKPT_SKIPPED) ++k;
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(agent_->reserves(), 1);
  EXPECT_EQ(stored("large", CheckpointId(1, k)), large.bytes);
}

TEST_F(SnapshotTest, SkipsSnapshotsWithAReasonWhileMemoryIsBeingReserved) {
  agent_->hold_reserve();
  auto engine = host_engine();
  auto large = test_tensor("large", CKPT_F32, {2000, 1000});
  large.fill(1);
  engine->register_tensor(large.abi());
  restore(*engine);
  for (int k = 0; k < 3; ++k) {
    const Outcome skipped = engine->snapshot(k);
    EXPECT_EQ(skipped.status, CKPT_SKIPPED);
    EXPECT_THAT(skipped.text, HasSubstr("being reserved in the background"));
    EXPECT_EQ(engine->before_update().status, CKPT_OK);
  }
  agent_->let_reserve();
  std::int64_t k = 3;
  while (engine->snapshot(k).status == CKPT_SKIPPED) ++k;
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(stored("large", CheckpointId(1, k)), large.bytes);
}

TEST_F(SnapshotTest, NextSnapshotReportsAReservationThatFailedInTheBackground) {
  agent_->answer_with("reserve", {{"status", CKPT_ERR_NO_SPACE}, {"message", "the arena needs 5MiB but has 1MiB"}});
  auto engine = host_engine();
  auto large = test_tensor("large", CKPT_F32, {2000, 1000});
  engine->register_tensor(large.abi());
  restore(*engine);
  std::int64_t k = 0;
  Caught refused{CKPT_OK, ""};
  for (const Deadline deadline = Deadline::in_ms(60'000); refused.status == CKPT_OK && !deadline.passed(); ++k)
    refused = caught([&] { engine->snapshot(k); });
  EXPECT_EQ(refused.status, CKPT_ERR_NO_SPACE);
  EXPECT_THAT(refused.sentence, HasSubstr("needs 5MiB"));
  EXPECT_EQ(caught([&] { engine->snapshot(k); }).status, CKPT_ERR_NO_SPACE);
}

TEST_F(SnapshotTest, UsesASlotThatTheAgentAddsWithoutAnotherReservation) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  agent_->add_slots();
  for (auto& tensor : tensors) tensor.fill(1);
  ASSERT_EQ(engine->snapshot(1).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(stored("weight", CheckpointId(1, 1)), tensors[0].bytes);
  EXPECT_EQ(agent_->reserves(), 1);
}

TEST_F(SnapshotTest, RefusesStateWithoutLargerSlotsAndContinuesTraining) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  agent_->grant();
  agent_->answer_with("reserve", {{"status", CKPT_ERR_NO_SPACE}, {"message", "the arena needs 5MiB but has 1MiB"}});
  auto large = test_tensor("large", CKPT_F32, {1000, 1000});
  engine->register_tensor(large.abi());
  const Caught refused = caught([&] { engine->snapshot(1); });
  EXPECT_EQ(refused.status, CKPT_ERR_NO_SPACE);
  EXPECT_THAT(refused.sentence, HasSubstr("needs 5MiB"));
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
  engine->unregister_tensor("large");
  EXPECT_EQ(engine->snapshot(2).status, CKPT_OK);
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
}

TEST_F(SnapshotTest, SlotBytesLeavesRoomToGrow) {
  auto engine = host_engine({{"slot_bytes", "8MiB"}});
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  agent_->grant();
  auto large = test_tensor("large", CKPT_F32, {1000, 1000});
  large.fill(1);
  engine->register_tensor(large.abi());
  ASSERT_EQ(engine->snapshot(1).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(stored("large", CheckpointId(1, 1)), large.bytes);
}

TEST_F(SnapshotTest, ReportsARefusedReservationAndDoesNotRepeatItEachIteration) {
  agent_->answer_with("reserve", {{"status", CKPT_ERR_NO_SPACE}, {"message", "the arena needs 5MiB but has 1MiB"}});
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  for (int k = 0; k < 3; ++k) {
    const Caught refused = caught([&] { engine->snapshot(k); });
    EXPECT_EQ(refused.status, CKPT_ERR_NO_SPACE);
    EXPECT_THAT(refused.sentence, HasSubstr("needs 5MiB"));
    EXPECT_EQ(engine->before_update().status, CKPT_OK);
  }
}

TEST_F(SnapshotTest, WrongOrderOfCallsIsRefused) {
  auto engine = host_engine();
  EXPECT_THAT(caught([&] { engine->snapshot(0); }).sentence, HasSubstr("before restore()"));
  restore(*engine);
  EXPECT_THAT(caught([&] { engine->snapshot(0); }).sentence, HasSubstr("before register_tensor()"));
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  EXPECT_THAT(caught([&] { engine->snapshot(-1); }).sentence, HasSubstr("out of range"));
  EXPECT_THAT(caught([&] { engine->snapshot(std::int64_t{1} << 40); }).sentence, HasSubstr("out of range"));
  ASSERT_EQ(engine->snapshot(5).status, CKPT_OK);
  for (const std::int64_t k : {5, 4}) {
    const Caught backwards = caught([&] { engine->snapshot(k); });
    EXPECT_EQ(backwards.status, CKPT_ERR_INVALID);
    EXPECT_THAT(backwards.sentence, HasSubstr("go backwards"));
  }
  // The pending snapshot is as it was, and its tensors stay where they are until it is captured.
  auto more = test_tensor("more", CKPT_F32, {1});
  EXPECT_THAT(caught([&] { engine->register_tensor(more.abi()); }).sentence, HasSubstr("call before_update() first"));
  EXPECT_THAT(caught([&] { engine->move_tensor("weight", more.bytes.data()); }).sentence,
              HasSubstr("call before_update() first"));
  EXPECT_THAT(caught([&] { engine->unregister_tensor("weight"); }).sentence, HasSubstr("call before_update() first"));
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_TRUE(agent_->piece("rank0", CheckpointId(1, 5)));
  EXPECT_THAT(caught([&] { restore(*engine); }).sentence, HasSubstr("called twice in this incarnation"));
}

TEST_F(SnapshotTest, ClosingFinishesThePendingCapture) {
  auto engine = this->engine<LateDevice>();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(3).status, CKPT_OK);
  engine.reset();
  EXPECT_EQ(stored("weight", CheckpointId(1, 3)), tensors[0].bytes);
}

TEST_F(SnapshotTest, AcceptsOnlySynchronousOrOnlyEmptyTensors) {
  auto engine = host_engine();
  auto rng = test_tensor("rng", CKPT_U8, {100}, CKPT_SYNCHRONOUS);
  auto empty = test_tensor("empty", CKPT_F32, {0});
  engine->register_tensor(rng.abi());
  ckpt_tensor null = empty.abi();
  null.data = nullptr;
  engine->register_tensor(null);
  restore(*engine);
  rng.fill(1);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_EQ(stored("rng", CheckpointId(1, 0)), rng.bytes);
  EXPECT_EQ(stored("empty", CheckpointId(1, 0)).size(), 0u);
}

TEST_F(SnapshotTest, IgnoresAGrantForASlotThatDoesNotExist) {
  auto engine = host_engine();
  auto tensors = mixed_tensors();
  register_all(*engine, tensors);
  restore(*engine);
  ASSERT_EQ(engine->snapshot(0).status, CKPT_OK);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  agent_->control().grant({2, {3, 0}});
  EXPECT_EQ(caught([&] { engine->snapshot(1); }).status, CKPT_ERR_INTERNAL);
}

}  // namespace
}  // namespace ckpt::client
