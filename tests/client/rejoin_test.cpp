// An engine whose job was halted goes on in the same process, in the next incarnation.
#include <dirent.h>

#include <future>

#include "halt_fixture.hpp"

namespace ckpt::client {
namespace {

using testing::HasSubstr;

class RejoinTest : public HaltedEngineTest {
 protected:
  std::vector<std::vector<std::byte>> bytes_of_tensors() const {
    std::vector<std::vector<std::byte>> all;
    for (const TestTensor& tensor : tensors_) all.push_back(tensor.bytes);
    return all;
  }
  // Trains until `k`, is halted there and captured, and then does what a forward pass does.
  std::unique_ptr<Engine> halted_engine(int k = 3) {
    auto engine = halting_engine();
    train_until(*engine, k);
    halt_at(k);
    return engine;
  }
  void halt_at(int k) {
    halt(k);
    await(FreezeState::captured, k);
    captured_ = bytes_of_tensors();
    tensors_[1].fill(99);
  }
  std::uint64_t private_bytes() const { return tensors_[1].bytes.size(); }

  std::vector<std::vector<std::byte>> captured_;
};

TEST_F(RejoinTest, TimeoutHasItsOwnStatus) {
  const auto engine = halting_engine();
  train_until(*engine, 3);
  ckpt_halt_t halt = CKPT_HALT_INIT;
  EXPECT_EQ(engine->wait_halt(1, halt).status, CKPT_ERR_TIMEOUT);
  EXPECT_EQ(engine->before_update().status, CKPT_OK);
}

TEST_F(RejoinTest, WaitHaltReturnsWhenTheRankIsFrozen) {
  const auto engine = halting_engine();
  train_until(*engine, 3);
  ckpt_halt_t found = CKPT_HALT_INIT;
  auto waiting = std::async(std::launch::async, [&] { return engine->wait_halt(20'000, found).status; });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  halt(3);
  ASSERT_EQ(waiting.get(), CKPT_OK);
  EXPECT_EQ(found.captured, 1);
  EXPECT_EQ(found.incarnation, 1u);
  EXPECT_EQ(found.iteration, 3);
  EXPECT_STREQ(found.text, "the job was halted; the state of iteration 3 is captured");
  expect_stored(3);
  EXPECT_EQ(engine->wait_halt(0, found).status, CKPT_OK) << "it stays so";
}

TEST_F(RejoinTest, WaitHaltSaysWhyTheRankIsNotCaptured) {
  const auto engine = halting_engine();
  train_until(*engine, 3);
  agent_->control().resume_at(100);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  fill(4);
  engine->snapshot(4);
  halt(4);
  ckpt_halt_t found = CKPT_HALT_INIT;
  ASSERT_EQ(engine->wait_halt(20'000, found).status, CKPT_OK);
  EXPECT_EQ(found.captured, 0);
  EXPECT_THAT(found.text, HasSubstr("is not captured, because its snapshot was skipped"));
}

TEST_F(RejoinTest, WaitHaltIsRefusedWithOnSuspicionReport) {
  const auto engine = host_engine();
  ckpt_halt_t halt = CKPT_HALT_INIT;
  const Outcome outcome = engine->wait_halt(60'000, halt);
  EXPECT_EQ(outcome.status, CKPT_ERR_INVALID);
  EXPECT_THAT(outcome.text, HasSubstr("on_suspicion=halt"));
}

TEST_F(RejoinTest, RankThatIsNotHaltedCannotRejoinAndContinuesTraining) {
  const auto engine = halting_engine();
  train_until(*engine, 3);
  const Caught refused = caught([&] { engine->rejoin(); });
  EXPECT_EQ(refused.status, CKPT_ERR_INVALID);
  EXPECT_THAT(refused.sentence, HasSubstr("is not halted"));
  EXPECT_EQ(agent_->hellos(), 1);
  EXPECT_EQ(agent_->last_bye(), nullptr);
  iterate(*engine, 4);
}

TEST_F(RejoinTest, AgentSeesANewEngineAfterRejoin) {
  const auto engine = halted_engine();
  const auto before = agent_->last_hello();
  engine->rejoin();
  const auto after = agent_->last_hello();
  EXPECT_NE(agent_->last_bye(), nullptr) << "the agent need not wait for this engine's end";
  EXPECT_NE(before.at("instance"), after.at("instance"));
  EXPECT_EQ(after.at("incarnation"), 0);
  EXPECT_EQ(after.at("pid"), before.at("pid"));
  EXPECT_EQ(after.at("open_engines").size(), 1u);
  EXPECT_EQ(after.at("open_engines").at(0), after.at("instance"));
  EXPECT_EQ(caught([&] { engine->snapshot(4); }).status, CKPT_ERR_INVALID) << "it has not restored";
  EXPECT_EQ(caught([&] { engine->rejoin(); }).status, CKPT_ERR_INVALID) << "it is not halted any more";
}

TEST_F(RejoinTest, KeepsTensorsThatHoldTheRestoredIteration) {
  const auto engine = halted_engine();
  WarningLog warnings(*engine);
  engine->rejoin();
  const ckpt_restored restored = restore(*engine);
  EXPECT_EQ(restored.iteration, 3);
  EXPECT_EQ(restored.incarnation, 3u);
  EXPECT_EQ(restored.main_tier, CKPT_TIER_LIVE);
  EXPECT_EQ(restored.private_tier, CKPT_TIER_LOCAL) << "the forward pass has changed it";
  EXPECT_EQ(restored.bytes, private_bytes());
  EXPECT_EQ(bytes_of_tensors(), captured_);
  EXPECT_EQ(warnings.take(CKPT_WARNING_TENSORS_CHANGED), "");
}

TEST_F(RejoinTest, ReportsAFlippedBitAndLoadsThePiece) {
  const auto engine = halted_engine();
  WarningLog warnings(*engine);
  engine->rejoin();
  tensors_[0].bytes[70'001] ^= std::byte{4};
  const ckpt_restored restored = restore(*engine);
  EXPECT_EQ(restored.main_tier, CKPT_TIER_LOCAL);
  EXPECT_EQ(restored.bytes, tensors_[0].bytes.size() + private_bytes());
  EXPECT_EQ(bytes_of_tensors(), captured_);
  EXPECT_THAT(warnings.take(CKPT_WARNING_TENSORS_CHANGED),
              HasSubstr("tensor weight is not what was captured at iteration 3"));
}

TEST_F(RejoinTest, LoadsOnlyTheDamagedPartOfAMainShard) {
  agent_->share({0, 2, 2});
  tensors_[0] = test_tensor("weight", CKPT_F32, {1024, 1024});
  const auto engine = halted_engine();
  engine->rejoin();
  tensors_[0].bytes[1] ^= std::byte{1};
  const ckpt_restored restored = restore(*engine);
  EXPECT_EQ(restored.main_tier, CKPT_TIER_LOCAL);
  EXPECT_EQ(restored.bytes, tensors_[0].bytes.size() / 2 + private_bytes());
  EXPECT_EQ(bytes_of_tensors(), captured_);
}

TEST_F(RejoinTest, LoadsAnOlderCheckpointWithoutAWarning) {
  const auto engine = halting_engine();
  train_until(*engine, 0);
  const auto whole = bytes_of_tensors();
  for (int k = 1; k <= 3; ++k) iterate(*engine, k);
  agent_->control().resume_at(100);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  fill(4);
  engine->snapshot(4);
  halt(4);
  await(FreezeState::refused, 4);
  WarningLog warnings(*engine);
  engine->rejoin();
  const ckpt_restored restored = restore(*engine);
  EXPECT_EQ(restored.iteration, 0) << "the newest iteration whose main shard is captured";
  EXPECT_EQ(restored.main_tier, CKPT_TIER_LOCAL);
  EXPECT_EQ(bytes_of_tensors(), whole);
  EXPECT_EQ(warnings.take(CKPT_WARNING_TENSORS_CHANGED), "");
}

TEST_F(RejoinTest, NewProcessLoadsAllTensors) {
  halted_engine().reset();
  const auto engine = host_engine({{"on_suspicion", "halt"}});
  register_all(*engine, tensors_);
  const ckpt_restored restored = restore(*engine);
  EXPECT_EQ(restored.iteration, 3);
  EXPECT_EQ(restored.main_tier, CKPT_TIER_LOCAL);
  EXPECT_EQ(restored.bytes, tensors_[0].bytes.size() + private_bytes());
}

TEST_F(RejoinTest, TrainingContinuesAndCanBeHaltedAgain) {
  const auto engine = halted_engine();
  for (int round = 0; round < 3; ++round) {
    engine->rejoin();
    const ckpt_restored restored = restore(*engine);
    ASSERT_EQ(restored.main_tier, CKPT_TIER_LIVE) << round;
    const int first = static_cast<int>(restored.next_iteration);
    EXPECT_EQ(engine->stage(first), CKPT_STAGE_NONE);
    for (int k = first; k < first + 12; ++k) iterate(*engine, k);
    halt_at(first + 11);
    ckpt_halt_t halt = CKPT_HALT_INIT;
    ASSERT_EQ(engine->wait_halt(0, halt).status, CKPT_OK);
    EXPECT_EQ(halt.iteration, first + 11);
    EXPECT_EQ(halt.incarnation, restored.incarnation);
  }
}

TEST_F(RejoinTest, AcceptsMovedTensorsBetweenRejoinAndRestore) {
  const auto engine = halted_engine();
  WarningLog warnings(*engine);
  engine->rejoin();
  TestTensor other = test_tensor("weight", CKPT_F32, {300, 700});
  other.fill(8);
  engine->move_tensor("weight", other.bytes.data());
  const ckpt_restored restored = restore(*engine);
  EXPECT_EQ(restored.main_tier, CKPT_TIER_LOCAL);
  EXPECT_EQ(other.bytes, captured_[0]);
  EXPECT_EQ(warnings.take(CKPT_WARNING_TENSORS_CHANGED), "") << "its memory was not what was captured";
}

TEST_F(RejoinTest, RefusesAFreshStartInAProcessThatHasTrained) {
  const auto engine = halted_engine();
  engine->rejoin();
  agent_->answer_with("restore", {{"found", false}});
  const Caught refused = caught([&] { restore(*engine); });
  EXPECT_EQ(refused.status, CKPT_ERR_LOST);
  EXPECT_THAT(refused.sentence, HasSubstr("have been trained already. End this process"));
}

TEST_F(RejoinTest, EndsWaitsForSnapshotsOfTheOldIncarnation) {
  const auto engine = halted_engine();
  auto waiting = std::async(std::launch::async, [&] { return engine->wait(100, CKPT_STAGE_COMMITTED, 20'000).status; });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  engine->rejoin();
  EXPECT_EQ(waiting.get(), CKPT_ERR_SUPERSEDED);
}

TEST_F(RejoinTest, ForgetsAFenceOfTheHaltedIncarnation) {
  const auto engine = halted_engine();
  agent_->control().fence(2);
  EXPECT_EQ(engine->before_update().status, CKPT_ERR_HALTED) << "not superseded: it may rejoin";
  engine->rejoin();
  restore(*engine);
  for (int k = 4; k < 12; ++k) iterate(*engine, k);
  EXPECT_EQ(engine->wait(10, CKPT_STAGE_CAPTURED, 20'000).status, CKPT_OK);
}

TEST_F(RejoinTest, ReportsTroubleToTheAgentInPlainCharacters) {
  const auto engine = halting_engine();
  train_until(*engine, 3);
  engine->report_trouble("Connection closed\nby peer \xff" + std::string(1000, '.'));
  const std::string text = agent_->last_trouble().at("text");
  EXPECT_TRUE(text.starts_with("Connection closed by peer ?..."));
  EXPECT_EQ(text.size(), 500u);
}

TEST_F(RejoinTest, IgnoresTroubleOfAHaltedRank) {
  const auto engine = halted_engine();
  engine->report_trouble("Connection closed by peer");
  EXPECT_EQ(agent_->last_trouble(), nullptr);
}

TEST_F(RejoinTest, RefusesTroubleOfARankThatCannotBeHalted) {
  EXPECT_EQ(caught([&] { host_engine()->report_trouble("closed"); }).status, CKPT_ERR_INVALID);
  const auto engine = host_engine({{"on_suspicion", "halt"}});
  EXPECT_THAT(caught([&] { engine->report_trouble("closed"); }).sentence, HasSubstr("before restore()"));
}

// Remembers where the slots are that it was given.
class SlotsDevice : public device::HostDevice {
 public:
  explicit SlotsDevice(std::vector<std::vector<const std::byte*>>& seen) : HostDevice(1), seen_(seen) {}
  void attach(const std::vector<device::Range>& ranges, const device::Owner&) override {
    std::vector<const std::byte*> slots;
    for (const device::Range& range : ranges) slots.push_back(range.data);
    if (!slots.empty()) seen_.push_back(std::move(slots));
  }

 private:
  std::vector<std::vector<const std::byte*>>& seen_;
};

TEST_F(RejoinTest, KeepsSlotsMappedAndAttachedToTheDevice) {
  std::vector<std::vector<const std::byte*>> seen;
  const auto engine = std::make_unique<Engine>(options({{"on_suspicion", "halt"}, {"capture_every", "10"}}),
                                               std::make_unique<SlotsDevice>(seen));
  register_all(*engine, tensors_);
  restore(*engine);
  train_until(*engine, 3);
  halt_at(3);
  engine->rejoin();
  restore(*engine);
  iterate(*engine, 4);
  EXPECT_EQ(seen.size(), 1u) << "the device need not pin them again";
  iterate(*engine, 10);
  ASSERT_EQ(engine->before_update().status, CKPT_OK);
  EXPECT_TRUE(agent_->piece("rank0", CheckpointId(3, 10)));
}

TEST_F(RejoinTest, RejoinFailsWithoutAnAgentAndCanBeRepeated) {
  auto engine = host_engine({{"on_suspicion", "halt"}, {"capture_every", "10"}, {"claim_timeout_ms", "100"}});
  register_all(*engine, tensors_);
  restore(*engine);
  train_until(*engine, 3);
  halt_at(3);
  agent_.reset();
  EXPECT_EQ(caught([&] { engine->rejoin(); }).status, CKPT_ERR_NO_AGENT);
  EXPECT_EQ(engine->before_update().status, CKPT_ERR_HALTED);
  ckpt_halt_t halt = CKPT_HALT_INIT;
  EXPECT_EQ(engine->wait_halt(0, halt).status, CKPT_OK);
  agent_.emplace(directory_.path());
  engine->rejoin();
  EXPECT_EQ(restore(*engine).main_tier, CKPT_TIER_LIVE);
  iterate(*engine, 4);
}

TEST_F(RejoinTest, AnEngineThatFailedToRejoinCanBeClosed) {
  auto engine = host_engine({{"on_suspicion", "halt"}, {"claim_timeout_ms", "100"}, {"close_timeout_ms", "100"}});
  register_all(*engine, tensors_);
  restore(*engine);
  train_until(*engine, 3);
  halt_at(3);
  agent_.reset();
  EXPECT_EQ(caught([&] { engine->rejoin(); }).status, CKPT_ERR_NO_AGENT);
  engine->await_last_commit();
  engine.reset();
}

std::size_t open_files() {
  std::size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

TEST_F(RejoinTest, ManyRejoinsLeaveNoFilesOpen) {
  const auto engine = halted_engine();
  engine->rejoin();
  std::size_t files = 0;
  for (int round = 0; round < 20; ++round) {
    const int next = static_cast<int>(restore(*engine).next_iteration);
    iterate(*engine, next);
    engine->comm_begin(0);
    engine->comm_end(0);
    halt_at(next);
    engine->rejoin();
    if (round == 3) files = open_files();
  }
  const Deadline deadline = Deadline::in_ms(20'000);  // the agent closes its end of the last connection a little later
  while (open_files() > files && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LE(open_files(), files);
}

}  // namespace
}  // namespace ckpt::client
