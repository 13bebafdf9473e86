// The C ABI over an engine that runs: children that a trainer forks.

#include <sys/wait.h>

#include "c_api_fixture.hpp"

namespace ckpt::client {
namespace {

TEST_F(CApiEngineTest, AForkedChildCanNeitherUseNorHarmTheEngine) {
  ASSERT_EQ(ckpt_snapshot(engine_, 0, CKPT_NO_STREAM), CKPT_OK);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool refused = ckpt_before_update(engine_, nullptr, 0) == CKPT_ERR_INVALID &&
                         ckpt_snapshot(engine_, 1, CKPT_NO_STREAM) == CKPT_ERR_INVALID &&
                         ckpt_comm_begin(engine_, 0, CKPT_NO_STREAM) == CKPT_ERR_INVALID &&
                         ckpt_comm_end(engine_, 0, CKPT_NO_STREAM) == CKPT_ERR_INVALID;
    ckpt_close(engine_);
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ckpt_before_update(engine_, nullptr, 0), CKPT_OK);
  EXPECT_EQ(stored("weight", CheckpointId(1, 0)), weight_.bytes);
}

TEST_F(CApiEngineTest, OldAndNewCallersReadTheJobsHealth) {
  struct {
    ckpt_health_t known;
    char later[64];
  } health{};
  EXPECT_EQ(ckpt_health(engine_, nullptr), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_health(engine_, &health.known), CKPT_ERR_INVALID) << "no size is given";
  health.known.struct_size = sizeof health;
  health.later[0] = 'x';
  EXPECT_EQ(ckpt_health(engine_, &health.known), CKPT_OK) << ckpt_last_error();
  EXPECT_EQ(health.known.struct_size, sizeof(ckpt_health_t));
  EXPECT_EQ(health.known.state, CKPT_DEGRADED) << "that agent says nothing";
  EXPECT_STRNE(health.known.text, "");
  EXPECT_EQ(health.later[0], 'x');
  EXPECT_EQ(ckpt_on_health(engine_, nullptr, nullptr), CKPT_OK);
}

TEST_F(CApiEngineTest, FailedSnapshotStaysOnTheControlPageUntilTheNextCapture) {
  const arena::Control& control = agent_->control();
  EXPECT_EQ(control.failure_since(-1), 0);
  ASSERT_EQ(ckpt_snapshot(engine_, 0, CKPT_NO_STREAM), CKPT_OK);
  ASSERT_EQ(ckpt_discard(engine_), CKPT_OK);
  EXPECT_EQ(control.failure_since(-1), CKPT_DISCARDED);
  EXPECT_EQ(control.failure_since(0), 0) << "captured since";
}

TEST_F(CApiEngineTest, TicketsAndCountersAreReadable) {
  ASSERT_EQ(ckpt_snapshot(engine_, 0, CKPT_NO_STREAM), CKPT_OK);
  ASSERT_EQ(ckpt_before_update(engine_, nullptr, 0), CKPT_OK);
  ckpt_stage stage = CKPT_STAGE_NONE;
  EXPECT_EQ(ckpt_snapshot_stage(engine_, 0, &stage), CKPT_OK);
  EXPECT_EQ(stage, CKPT_STAGE_CAPTURED);
  EXPECT_EQ(ckpt_snapshot_stage(engine_, 1, &stage), CKPT_OK);
  EXPECT_EQ(stage, CKPT_STAGE_NONE);
  ckpt_stats_t stats = CKPT_STATS_INIT;
  EXPECT_EQ(ckpt_stats(engine_, &stats), CKPT_OK);
  EXPECT_EQ(stats.bytes_captured, weight_.bytes.size() + rng_.bytes.size());
  EXPECT_GT(stats.capture_ms, 0);
  EXPECT_EQ(stats.committed_iteration, -1);
  EXPECT_EQ(stats.durable_iteration, -1);
  EXPECT_EQ(ckpt_wait(engine_, 0, CKPT_STAGE_COMMITTED, 1), CKPT_ERR_TIMEOUT);
  EXPECT_STRNE(ckpt_last_error(), "");
}

using Warnings = std::vector<std::pair<ckpt_warning, std::string>>;
void note(ckpt_warning warning, const char* text, void* user) {
  static_cast<Warnings*>(user)->emplace_back(warning, text);
}

TEST_F(CApiEngineTest, ASkippedSnapshotIsNoErrorAndSaysWhy) {
  ASSERT_EQ(ckpt_snapshot(engine_, 0, CKPT_NO_STREAM), CKPT_OK);
  ASSERT_EQ(ckpt_before_update(engine_, nullptr, 0), CKPT_OK);
  ASSERT_EQ(ckpt_snapshot(engine_, 1, CKPT_NO_STREAM), CKPT_OK);
  const ckpt_status skipped = ckpt_before_update(engine_, nullptr, 0);
  EXPECT_EQ(skipped, CKPT_SKIPPED);
  EXPECT_FALSE(ckpt_is_error(skipped));
  EXPECT_THAT(ckpt_last_error(), testing::HasSubstr("all ranks skip"));
}

TEST_F(CApiEngineTest, ForgottenUpdateGivesAWarningWithoutAnErrorText) {
  Warnings warnings;
  ASSERT_EQ(ckpt_on_warning(engine_, note, &warnings), CKPT_OK);
  ASSERT_EQ(ckpt_snapshot(engine_, 0, CKPT_NO_STREAM), CKPT_OK);
  EXPECT_EQ(ckpt_snapshot(engine_, 1, CKPT_NO_STREAM), CKPT_OK);
  EXPECT_STREQ(ckpt_last_error(), "");
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].first, CKPT_WARNING_FORGOTTEN_UPDATE);
  EXPECT_THAT(warnings[0].second, testing::HasSubstr("before_update() was not called"));
  EXPECT_EQ(ckpt_before_update(engine_, nullptr, 0), CKPT_OK);
}

TEST_F(CApiEngineTest, DeliversEarlierWarningsOnceTheCallbackIsSet) {
  ASSERT_EQ(ckpt_snapshot(engine_, 0, CKPT_NO_STREAM), CKPT_OK);
  ASSERT_EQ(ckpt_snapshot(engine_, 1, CKPT_NO_STREAM), CKPT_OK);
  Warnings warnings;
  ASSERT_EQ(ckpt_on_warning(engine_, note, &warnings), CKPT_OK);
  EXPECT_EQ(warnings.size(), 1u);
  ASSERT_EQ(ckpt_on_warning(engine_, note, &warnings), CKPT_OK);
  EXPECT_EQ(warnings.size(), 1u);
  ASSERT_EQ(ckpt_on_warning(engine_, nullptr, nullptr), CKPT_OK);
}

TEST_F(CApiEngineTest, WarnsOfUnknownVariablesWhenAnEngineIsCreated) {
  ckpt_close(std::exchange(engine_, nullptr));
  const std::string& directory = directory_.path();
  const ckpt_option options[] = {{"job", "job"},   {"rank", "0"},       {"world_size", "1"},
                                 {"node", "node"}, {"agent", "attach"}, {"arena_dir", directory.c_str()}};
  ::setenv("CKPTENGINE_COLOUR", "red", 1);
  ::setenv("CKPT_DIR", "/ckpts", 1);
  EXPECT_EQ(ckpt_create(options, std::size(options), &engine_), CKPT_OK) << ckpt_last_error();
  ::unsetenv("CKPTENGINE_COLOUR");
  ::unsetenv("CKPT_DIR");
  EXPECT_STREQ(ckpt_last_error(), "");
  Warnings warnings;
  ASSERT_EQ(ckpt_on_warning(engine_, note, &warnings), CKPT_OK);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].first, CKPT_WARNING_ENVIRONMENT);
  EXPECT_THAT(warnings[0].second, testing::HasSubstr("CKPTENGINE_COLOUR"));
  ASSERT_EQ(ckpt_on_warning(engine_, nullptr, nullptr), CKPT_OK);
}

TEST_F(CApiEngineTest, FillsStructsOfOlderAndNewerCallers) {
  struct {
    ckpt_stats_t known = CKPT_STATS_INIT;
    std::uint64_t later = 7;
  } stats;
  stats.known.struct_size = sizeof stats;
  EXPECT_EQ(ckpt_stats(engine_, &stats.known), CKPT_OK) << ckpt_last_error();
  EXPECT_EQ(stats.known.struct_size, sizeof(ckpt_stats_t));
  EXPECT_EQ(stats.later, 7u);
  stats.known.struct_size = 0;
  EXPECT_EQ(ckpt_stats(engine_, &stats.known), CKPT_ERR_INVALID);
  EXPECT_THAT(ckpt_last_error(), testing::HasSubstr("sizeof(ckpt_stats_t)"));
}

TEST_F(CApiEngineTest, RefusesNonzeroMembersThatTheLibraryDoesNotKnow) {
  struct {
    ckpt_tensor known = CKPT_TENSOR_INIT;
    std::uint64_t later = 0;
  } tensor;
  tensor.known.struct_size = sizeof tensor;
  tensor.known.name = "of the future";
  tensor.known.data = &tensor;
  EXPECT_EQ(ckpt_register_tensor(engine_, &tensor.known), CKPT_OK) << ckpt_last_error();
  tensor.later = 1;
  EXPECT_EQ(ckpt_register_tensor(engine_, &tensor.known), CKPT_ERR_INVALID);
  EXPECT_THAT(ckpt_last_error(), testing::HasSubstr("does not know"));
  tensor.known.struct_size = 0;
  EXPECT_EQ(ckpt_register_tensor(engine_, &tensor.known), CKPT_ERR_INVALID);
  EXPECT_THAT(ckpt_last_error(), testing::HasSubstr("CKPT_TENSOR_INIT"));
}

TEST_F(CApiEngineTest, RequiresAStreamForTensorsInGpuMemory) {
  ckpt_tensor empty = CKPT_TENSOR_INIT;  // so that it needs no GPU
  const std::int64_t none = 0;
  empty.name = "on the GPU";
  empty.shape = &none;
  empty.ndim = 1;
  empty.memory = CKPT_DEVICE;
  ASSERT_EQ(ckpt_register_tensor(engine_, &empty), CKPT_OK) << ckpt_last_error();
  void* const legacy_default = nullptr;
  EXPECT_EQ(ckpt_snapshot(engine_, 0, CKPT_NO_STREAM), CKPT_ERR_INVALID);
  EXPECT_THAT(ckpt_last_error(), testing::HasSubstr("snapshot() was called without a stream"));
  ASSERT_EQ(ckpt_snapshot(engine_, 0, legacy_default), CKPT_OK) << ckpt_last_error();
  EXPECT_EQ(ckpt_before_update(engine_, nullptr, 0), CKPT_ERR_INVALID);
  EXPECT_EQ(ckpt_before_update(engine_, &legacy_default, 1), CKPT_OK) << ckpt_last_error();
  agent_->grant();
  ASSERT_EQ(ckpt_unregister_tensor(engine_, empty.name), CKPT_OK);
  EXPECT_EQ(ckpt_snapshot(engine_, 1, CKPT_NO_STREAM), CKPT_OK) << ckpt_last_error();
}

TEST_F(CApiEngineTest, IgnoresTheStreamForTensorsInHostMemory) {
  void* const legacy_default = nullptr;
  EXPECT_EQ(ckpt_snapshot(engine_, 0, legacy_default), CKPT_OK);
  EXPECT_EQ(ckpt_before_update(engine_, &legacy_default, 1), CKPT_OK);
  agent_->grant();
  void* const none = CKPT_NO_STREAM;
  EXPECT_EQ(ckpt_snapshot(engine_, 1, none), CKPT_OK);
  EXPECT_EQ(ckpt_before_update(engine_, &none, 1), CKPT_OK);
}

TEST_F(CApiEngineTest, CommunicationCallsWriteMarks) {
  static_assert(CKPT_COMM_CHANNELS == arena::comm_channels_max);
  const arena::CommWords& words = agent_->control().comm();
  arena::CommReader reader(words);
  EXPECT_EQ(ckpt_comm_begin(engine_, 7, CKPT_NO_STREAM), CKPT_OK);
  EXPECT_TRUE(reader.is_busy());
  EXPECT_EQ(words.channels[7].begun, 1u);
  EXPECT_EQ(ckpt_comm_end(engine_, 7, CKPT_NO_STREAM), CKPT_OK);
  EXPECT_FALSE(reader.is_busy());

  EXPECT_EQ(ckpt_comm_end(engine_, 7, CKPT_NO_STREAM), CKPT_ERR_INVALID);
  EXPECT_THAT(ckpt_last_error(), testing::HasSubstr("without a comm_begin()"));
  for (const std::uint32_t channel : {8u, 0xffffffffu}) {
    EXPECT_EQ(ckpt_comm_begin(engine_, channel, CKPT_NO_STREAM), CKPT_ERR_INVALID);
    EXPECT_THAT(ckpt_last_error(), testing::HasSubstr("use 0 to 7"));
    EXPECT_EQ(ckpt_comm_end(engine_, channel, CKPT_NO_STREAM), CKPT_ERR_INVALID);
    EXPECT_THAT(ckpt_last_error(), testing::HasSubstr(std::to_string(channel)));
  }
  EXPECT_EQ(words.written, 2u);
}

TEST_F(CApiEngineTest, AcceptsASecondEngineAfterAnOrderlyClose) {
  ckpt_close(std::exchange(engine_, nullptr));
  const std::string& directory = directory_.path();
  const ckpt_option options[] = {{"job", "job"},   {"rank", "0"},       {"world_size", "1"},
                                 {"node", "node"}, {"agent", "attach"}, {"arena_dir", directory.c_str()}};
  EXPECT_EQ(ckpt_create(options, std::size(options), &engine_), CKPT_OK) << ckpt_last_error();
  EXPECT_EQ(agent_->hellos(), 2);
}

}  // namespace
}  // namespace ckpt::client
