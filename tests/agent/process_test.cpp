// Agents and trainers that are killed, stopped and replaced.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "processes.hpp"

namespace ckpt::agent {
namespace {

using testing::AgentCluster;
using ::testing::HasSubstr;
using testing::Process;
using testing::start_agent;
using testing::TrainerProcess;

constexpr std::int64_t found = 1000;  // added to the restored iteration

class ProcessTest : public ::testing::Test {
 protected:
  // A job of one rank whose iteration 0 is committed.
  void begin_job() {
    agent_.emplace(start_agent(cluster_, "a"));
    trainer_.emplace(cluster_, "a", 0);
    ASSERT_EQ(trainer_->command(TrainerProcess::order_create), CKPT_OK);
    ASSERT_EQ(trainer_->command(TrainerProcess::order_restore), CKPT_OK);
    commit(0);
  }
  // Some snapshot from `iteration` on; leaves committed_ at it.
  void commit(std::int64_t iteration) {
    const auto last = iteration + 200;
    for (; iteration < last; ++iteration) {
      if (trainer_->command(TrainerProcess::order_snapshot, iteration) != CKPT_OK) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      if (trainer_->command(TrainerProcess::order_wait_commit, iteration) != CKPT_OK) continue;
      committed_ = iteration;
      return;
    }
    FAIL() << "nothing was committed";
  }
  void expect_restore_in_new_process() {
    TrainerProcess next(cluster_, "a", 0);
    ASSERT_EQ(next.command(TrainerProcess::order_create), CKPT_OK) << next.error();
    EXPECT_EQ(next.command(TrainerProcess::order_restore), found + committed_);
    EXPECT_TRUE(next.command(TrainerProcess::order_holds, committed_));
  }
  void kill_agent() {
    agent_->kill(SIGKILL);
    agent_->wait();
    agent_.reset();
  }

  AgentCluster cluster_{1};
  std::optional<Process> agent_;
  std::optional<TrainerProcess> trainer_;
  std::int64_t committed_ = -1;
};

TEST_F(ProcessTest, AnAgentThatIsKilledAndRestartedKeepsItsLivingTrainer) {
  begin_job();
  for (int round = 0; round < 3; ++round) {
    kill_agent();
    agent_.emplace(start_agent(cluster_, "a"));
    commit(committed_ + 1);
  }
  EXPECT_EQ(cluster_.status("a").at("incarnation"), 1);
  trainer_.reset();
  expect_restore_in_new_process();
}

TEST_F(ProcessTest, CommitsACaptureThatContinuedWhileTheAgentRestarted) {
  begin_job();
  std::int64_t iteration = committed_ + 1;
  while (trainer_->command(TrainerProcess::order_begin_snapshot, iteration) != CKPT_OK) ++iteration;
  kill_agent();
  agent_.emplace(start_agent(cluster_, "a"));
  EXPECT_EQ(trainer_->command(TrainerProcess::order_end_snapshot), CKPT_OK);
  EXPECT_EQ(trainer_->command(TrainerProcess::order_wait_commit, iteration), CKPT_OK);
  committed_ = iteration;
  trainer_.reset();
  expect_restore_in_new_process();
}

TEST_F(ProcessTest, TrainerKilledDuringACaptureLosesNoCommit) {
  begin_job();
  trainer_->command(TrainerProcess::order_begin_snapshot, committed_ + 1);
  trainer_->process().kill(SIGKILL);
  trainer_.reset();
  expect_restore_in_new_process();
}

TEST_F(ProcessTest, AStoppedTrainerIsKilledAndReplaced) {
  begin_job();
  trainer_->command(TrainerProcess::order_begin_snapshot, committed_ + 1);
  trainer_->process().kill(SIGSTOP);
  trainer_->process().wait_until_stopped();
  expect_restore_in_new_process();
  const int status = trainer_->process().wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it can never wake and write";
}

TEST_F(ProcessTest, RestartedAgentReplacesAStoppedTrainerItNeverMet) {
  begin_job();
  trainer_->command(TrainerProcess::order_begin_snapshot, committed_ + 1);
  trainer_->process().kill(SIGSTOP);
  trainer_->process().wait_until_stopped();
  kill_agent();
  agent_.emplace(start_agent(cluster_, "a"));
  expect_restore_in_new_process();
  const int status = trainer_->process().wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST_F(ProcessTest, RefusesARankOfALivingProcessAndNamesThatProcess) {
  begin_job();
  TrainerProcess second(cluster_, "a", 0, {{"claim_timeout_ms", "200"}});
  EXPECT_EQ(second.command(TrainerProcess::order_create), CKPT_ERR_CLAIMED);
  EXPECT_THAT(second.error(), HasSubstr(std::to_string(trainer_->process().pid())));
  commit(committed_ + 1);  // the first one is unharmed
}

TEST_F(ProcessTest, WaitingProcessGetsTheRankWhenItsHolderEnds) {
  begin_job();
  TrainerProcess second(cluster_, "a", 0, {{"claim_timeout_ms", "20000"}});
  second.begin(TrainerProcess::order_create);
  trainer_->process().kill(SIGKILL);
  EXPECT_EQ(second.answer(), CKPT_OK);
  EXPECT_EQ(second.command(TrainerProcess::order_restore), found + committed_);
}

TEST_F(ProcessTest, ClosedEngineReleasesItsRankWhileItsProcessLives) {
  begin_job();
  ASSERT_EQ(trainer_->command(TrainerProcess::order_close), 0);
  expect_restore_in_new_process();
}

TEST_F(ProcessTest, AgentEndsCleanlyOnSigterm) {
  agent_.emplace(start_agent(cluster_, "a"));
  agent_->kill(SIGTERM);
  const int status = agent_->wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(std::filesystem::exists(cluster_.node_dir("a") + "/agent.sock"));
}

class NodeNameTest : public ProcessTest {
 protected:
  // It must seem to be an agent of another machine, so it has an arena of its own.
  std::vector<std::string> elsewhere() const {
    auto words = testing::agent_words(cluster_, "a");
    for (std::string& word : words)
      if (word.starts_with("arena_dir=")) word = "arena_dir=" + cluster_.path() + "/other";
    return words;
  }
  bool serves_elsewhere() const {
    return testing::eventually([&] { return std::filesystem::exists(cluster_.path() + "/other/test/a/agent.sock"); });
  }
};

TEST_F(NodeNameTest, RefusesASecondMachineWithANodesNameAndNotifiesBoth) {
  auto first = testing::spawn(testing::agent_words(cluster_, "a"));
  ASSERT_TRUE(testing::eventually([&] { return std::filesystem::exists(cluster_.node_dir("a") + "/agent.sock"); }));
  auto second = testing::spawn(elsewhere());
  const int status = second.process.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  const std::string refusal = testing::read_all(second.errors);
  EXPECT_THAT(refusal, HasSubstr("node a of job test is served by another agent, which answers at 127.0.0.1:"));
  EXPECT_THAT(refusal, HasSubstr("option node"));
  EXPECT_TRUE(testing::eventually([&] {
    return cluster_.status("a").at("notices").dump().find("tried to serve node a, too, and was refused") !=
           std::string::npos;
  }));
  EXPECT_EQ(::kill(first.process.pid(), 0), 0) << "the first one goes on";
  first.process.kill(SIGKILL);
}

TEST_F(NodeNameTest, AcceptsAMachineInThePlaceOfADeadOne) {
  auto first = testing::spawn(testing::agent_words(cluster_, "a"));
  ASSERT_TRUE(testing::eventually([&] { return std::filesystem::exists(cluster_.node_dir("a") + "/agent.sock"); }));
  first.process.kill(SIGKILL);
  first.process.wait();
  auto second = testing::spawn(elsewhere());
  EXPECT_TRUE(serves_elsewhere());
  second.process.kill(SIGKILL);
}

TEST_F(NodeNameTest, AgentReplacedWhileStoppedEndsAndSaysSo) {
  auto first = testing::spawn(testing::agent_words(cluster_, "a"));
  ASSERT_TRUE(testing::eventually([&] { return std::filesystem::exists(cluster_.node_dir("a") + "/agent.sock"); }));
  first.process.kill(SIGSTOP);
  first.process.wait_until_stopped();
  auto second = testing::spawn(elsewhere());
  ASSERT_TRUE(serves_elsewhere());
  first.process.kill(SIGCONT);
  const int status = first.process.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == agent_exists_status) << status;
  EXPECT_THAT(testing::read_all(first.errors), HasSubstr("now served by another agent"));
  second.process.kill(SIGKILL);
}

TEST_F(ProcessTest, DetachReturnsOnceTrainersCanConnect) {
  auto words = testing::agent_words(cluster_, "a");
  words.emplace_back("--detach");
  auto started = testing::spawn(words);
  const int status = started.process.wait();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << testing::read_all(started.errors);
  const auto pid = cluster_.status("a").at("pid").get<pid_t>();
  EXPECT_NE(pid, ::getpid());

  auto second = testing::spawn(words);
  EXPECT_EQ(WEXITSTATUS(second.process.wait()), agent_exists_status);
  EXPECT_THAT(testing::read_all(second.errors), HasSubstr("another agent uses the arena"));

  EXPECT_EQ(cluster_.ask("a", {{"type", "stop"}}).at("status"), CKPT_OK);
  EXPECT_TRUE(testing::eventually([&] { return !arena::inspect_arena(cluster_.node_dir("a"))->in_use; }));
}

TEST_F(ProcessTest, ReportsWrongOptionsInOneSentence) {
  for (const auto& [word, named] : {std::pair("colour=red", "colour"), std::pair("arena_bytes=many", "arena_bytes"),
                                    std::pair("--job", "job"), std::pair("transport=pigeon", "pigeon")}) {
    auto words = testing::agent_words(cluster_, "a");
    if (std::string_view(word) == "--job") std::erase(words, "job=test");
    words.emplace_back(word);
    auto started = testing::spawn(words);
    EXPECT_EQ(WEXITSTATUS(started.process.wait()), 1);
    const std::string said = testing::read_all(started.errors);
    EXPECT_THAT(said, HasSubstr(named));
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  }
}

}  // namespace
}  // namespace ckpt::agent
