// ckptctl's commands against agents that run in processes of their own.
#include "cli/commands.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "../agent/processes.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace ckpt::cli {
namespace {

using agent::testing::AgentCluster;
using agent::testing::Process;
using agent::testing::start_agent;
using agent::testing::TrainerProcess;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class CommandsTest : public ::testing::Test {
 protected:
  Scope scope(const std::string& job = "", const std::string& node = "") const {
    return {cluster_.path() + "/arena", cluster_.path() + "/coordination", job, node};
  }
  void start(const std::string& node) { agents_.push_back(start_agent(cluster_, node)); }
  template <class Command>
  std::string failure_of(Command command) {
    try {
      return "no failure, but: " + command().text;
    } catch (const Failure& failure) {
      return failure.what();
    }
  }

  struct Ran {
    int status;
    std::string out;
  };
  Ran run(const std::string& words) const {
    const std::string line = std::string(CKPTCTL_PROGRAM) + " " + words + " --arena-dir " + scope().arena_dir +
                             " --coordination " + scope().coordination.at + " 2>&1";
    FILE* pipe = ::popen(line.c_str(), "r");
    Ran ran{0, ""};
    std::array<char, 4096> buffer{};
    for (std::size_t got = 0; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
      ran.out.append(buffer.data(), got);
    ran.status = WEXITSTATUS(::pclose(pipe));
    return ran;
  }

  AgentCluster cluster_{1};
  std::vector<Process> agents_;
};

TEST_F(CommandsTest, StatusShowsARanksShortageOfMemory) {
  start("a");
  FrameSocket trainer = FrameSocket::connect(cluster_.node_dir("a") + "/agent.sock");
  const auto ask = [&](const nlohmann::json& request) {
    trainer.send(request, {}, Deadline::in_ms(30'000));
    return trainer.receive(Deadline::in_ms(30'000)).body.at("status");
  };
  ASSERT_EQ(ask({{"type", "hello"},
                 {"protocol", 3},
                 {"job", "test"},
                 {"rank", 0},
                 {"world_size", 1},
                 {"shard", "rank0"},
                 {"private_shard", "rank0.private"},
                 {"instance", 7},
                 {"pid", 1},
                 {"incarnation", 0},
                 {"options", nlohmann::json::object()}}),
            CKPT_OK);
  EXPECT_THAT(status(scope("test")).text, Not(HasSubstr("memory is short")));
  const nlohmann::json slots = {{{"shard", "rank0"}, {"bytes", 1}, {"layout_bytes", 2}},
                                {{"shard", "rank0.private"}, {"bytes", 0}, {"layout_bytes", 2}}};
  ASSERT_EQ(ask({{"type", "reserve"}, {"slots", slots}, {"shortage", "memory is short"}}), CKPT_OK);
  const Result result = status(scope("test"));
  EXPECT_EQ(result.json.at("agents")[0].at("ranks")[0].at("shortage"), "memory is short");
  EXPECT_THAT(result.text, HasSubstr("    rank 0: memory is short\n"));
}

TEST_F(CommandsTest, StatusShowsEveryAgentAndWhatItHolds) {
  start("a");
  start("b");
  TrainerProcess trainer(cluster_, "a", 0);
  ASSERT_EQ(trainer.command(TrainerProcess::order_create), CKPT_OK);
  ASSERT_EQ(trainer.command(TrainerProcess::order_restore), CKPT_OK);
  ASSERT_EQ(trainer.command(TrainerProcess::order_snapshot, 0), CKPT_OK);
  ASSERT_EQ(trainer.command(TrainerProcess::order_wait_commit, 0), CKPT_OK);
  const Result result = status(scope("test"));
  EXPECT_TRUE(result.good);
  ASSERT_EQ(result.json.at("agents").size(), 2u);
  EXPECT_EQ(result.json.at("agents")[0].at("committed").at("iteration"), 0);
  EXPECT_THAT(result.text, AllOf(HasSubstr("node a of job test"), HasSubstr("node b of job test"),
                                 HasSubstr("committed: iteration 0 of incarnation 1"), HasSubstr("rank0.private"),
                                 HasSubstr(std::to_string(trainer.process().pid()))));
  EXPECT_EQ(status(scope("test", "b")).json.at("agents").size(), 1u);
}

TEST_F(CommandsTest, StatusOfAnUnknownJobNamesTheKnownOnes) {
  EXPECT_THAT(failure_of([&] { return status(scope("other")); }), HasSubstr("arena_dir"));
  start("a");
  EXPECT_THAT(failure_of([&] { return status(scope("other")); }), HasSubstr("the jobs there are: test"));
}

TEST_F(CommandsTest, ReportsAnAgentThatIsGone) {
  start("a");
  agents_.clear();  // killed
  const Result result = status(scope());
  EXPECT_FALSE(result.good);
  EXPECT_THAT(result.text, HasSubstr("not running"));
  EXPECT_EQ(result.json.at("without_agent")[0].at("node"), "a");
  const Result verdict = health(scope());
  EXPECT_EQ(verdict.exit_status, 2);
  EXPECT_THAT(verdict.text, HasSubstr("no agent of job test answers"));
  EXPECT_THAT(failure_of([&] { return stop(scope("test")); }), HasSubstr("no running agent of job test"));
}

TEST_F(CommandsTest, StopEndsTheAgentsAndKeepsTheirMemory) {
  start("a");
  start("b");
  const Result result = stop(scope("test"));
  EXPECT_TRUE(result.good) << result.text;
  EXPECT_EQ(result.json.at("stopped").size(), 2u);
  for (Process& agent : agents_) {
    const int status = agent.wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_TRUE(std::filesystem::exists(cluster_.node_dir("a") + "/node"));
}

TEST_F(CommandsTest, FailsWithStatusOneAndNamesWrongArguments) {
  for (const char* words : {"bananas", "status --bananas", "status bananas", "status colour=red"}) {
    const Ran ran = run(words);
    EXPECT_EQ(ran.status, 1) << words;
    EXPECT_THAT(ran.out, AnyOf(HasSubstr("bananas"), HasSubstr("colour"))) << words;
  }
}

TEST_F(CommandsTest, GcRemovesOnlyADeadJob) {
  start("a");
  const Result kept = gc(scope("test"), {});
  EXPECT_FALSE(kept.good);
  EXPECT_THAT(kept.text, HasSubstr("ckptctl stop"));
  EXPECT_TRUE(std::filesystem::exists(cluster_.node_dir("a") + "/node"));

  agents_.clear();
  std::filesystem::create_directories(scope().coordination.at + "/unrelated");
  const Result removed = gc(scope("test"), {});
  EXPECT_TRUE(removed.good) << removed.text;
  EXPECT_FALSE(std::filesystem::exists(scope().arena_dir + "/test"));
  EXPECT_FALSE(std::filesystem::exists(scope().coordination.at + "/test"));
  EXPECT_TRUE(std::filesystem::exists(scope().coordination.at + "/unrelated"));
  EXPECT_THAT(failure_of([&] { return gc(scope("test"), {}); }), HasSubstr("no arena or record of job test"));
}

bool has_open_for_writing(const std::string& path) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_meanwhile;
    if (std::filesystem::read_symlink(entry.path(), closed_meanwhile) != path) continue;
    const int flags = ::fcntl(std::stoi(entry.path().filename().string()), F_GETFL);
    if (flags >= 0 && (flags & O_ACCMODE) == O_RDWR) return true;
  }
  return false;
}

TEST_F(CommandsTest, GcDoesNotMistakeAReaderOfTheArenaForAnAgent) {
  start("a");
  agents_.clear();
  const std::string file = std::filesystem::canonical(cluster_.node_dir("a") + "/node").string();
  UniqueFd looked_at(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(looked_at.get(), LOCK_SH), 0);
  std::thread looking([&] {  // a slow one, until gc has tried to lock it
    const Deadline deadline = Deadline::in_ms(30'000);
    while (!has_open_for_writing(file) && !deadline.passed()) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    looked_at.reset();
  });
  const std::string why = failure_of([&] { return gc(scope("test"), {}); });
  looking.join();
  EXPECT_THAT(why, HasSubstr("removed job test: 1 arenas"));
}

TEST_F(CommandsTest, GcKeepsAJobWithALivingTrainer) {
  start("a");
  TrainerProcess trainer(cluster_, "a", 0);
  ASSERT_EQ(trainer.command(TrainerProcess::order_create), CKPT_OK);
  agents_.clear();
  const Result result = gc(scope("test"), {});
  EXPECT_FALSE(result.good);
  EXPECT_THAT(result.text, HasSubstr("a trainer of rank 0"));
}

TEST_F(CommandsTest, GcKeepsAJobThatRunsOnOtherNodes) {
  start("a");
  Scope elsewhere = scope("test");
  elsewhere.arena_dir += "-of-another-machine";
  std::filesystem::create_directories(elsewhere.arena_dir);
  // The only agent becomes leader in a moment, and renews its record from then on.
  ASSERT_TRUE(agent::testing::eventually([&] { return cluster_.status("a").at("is_leader") == true; }));
  const Result result = gc(elsewhere, {});
  EXPECT_FALSE(result.good);
  EXPECT_THAT(result.text, HasSubstr("its agent on node a"));
}

TEST_F(CommandsTest, GcKeepsAJobOfStoppedAgentsOnOtherNodes) {
  start("a");
  agents_[0].kill(SIGSTOP);
  agents_[0].wait_until_stopped();
  Scope elsewhere = scope("test");
  elsewhere.arena_dir += "-of-another-machine";
  const Result result = gc(elsewhere, {});
  EXPECT_FALSE(result.good);
  EXPECT_THAT(result.text, HasSubstr("its agent on node a answers at"));
  EXPECT_TRUE(std::filesystem::exists(scope().coordination.at + "/test/nodes"));
}

TEST_F(CommandsTest, GcOfEverythingSkipsRunningJobs) {
  start("a");
  std::filesystem::create_directories(scope().arena_dir + "/dead/x");
  std::ofstream(scope().arena_dir + "/dead/x/node") << std::string("CKPTNE1\0of another version", 26);
  const Result result = gc(scope(), {.all = true});
  EXPECT_TRUE(result.good);
  EXPECT_EQ(result.json.at("removed").size(), 1u);
  EXPECT_EQ(result.json.at("kept").size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(scope().arena_dir + "/dead"));
  EXPECT_THAT(failure_of([&] { return gc(scope(), {}); }), HasSubstr("--all"));
}

// One level too high, a live job's arena looks like a job, and everybody else's directories like its nodes.
TEST_F(CommandsTest, GcLeavesDirectoriesThatAreNoArena) {
  start("a");
  const std::string above = cluster_.path(), precious = above + "/someapp/data", linked = above + "/else/where/linked";
  for (const std::string& directory : {precious, linked, scope().arena_dir + "/job"}) {
    std::filesystem::create_directories(directory);
    std::ofstream(directory + "/file") << "precious";
  }
  std::filesystem::create_directory_symlink(above + "/else/where", scope().arena_dir + "/link");
  std::filesystem::create_directory_symlink(linked, scope().arena_dir + "/job/link");
  std::ofstream(linked + "/node") << std::string("CKPTNE1\0of another version", 26);
  Scope too_high = scope();
  too_high.arena_dir = above;
  for (const Scope& each : {too_high, scope()}) gc(each, {.all = true});
  EXPECT_TRUE(std::filesystem::exists(cluster_.node_dir("a") + "/node"));
  EXPECT_TRUE(std::filesystem::exists(precious + "/file"));
  EXPECT_TRUE(std::filesystem::exists(linked + "/file"));
  EXPECT_TRUE(std::filesystem::exists(scope().arena_dir + "/job/file"));
}

TEST_F(CommandsTest, NamesAStoppedAgentInsteadOfWaitingForIt) {
  start("a");
  agents_[0].kill(SIGSTOP);
  agents_[0].wait_until_stopped();
  const Result result = doctor(scope());
  EXPECT_FALSE(result.good);
  EXPECT_THAT(result.text,
              AllOf(HasSubstr("BAD"), HasSubstr(std::to_string(agents_[0].pid())), HasSubstr("does not answer")));
}

TEST_F(CommandsTest, JobWithASilentAgentIsNotProtected) {
  start("a");
  agents_[0].kill(SIGSTOP);
  agents_[0].wait_until_stopped();
  const Result verdict = health(scope());
  EXPECT_EQ(verdict.exit_status, 2);
  EXPECT_EQ(verdict.json.at("held_up_by").at("node"), "a");
  const Result looked = status(scope());
  EXPECT_EQ(looked.exit_status, 2);
  EXPECT_THAT(looked.text, StartsWith("not protected: job test: "));
}

TEST_F(CommandsTest, DoctorFindsStaleArenasAndDirectoriesThatAreNotInMemory) {
  start("a");
  agents_.clear();
  const Result result = doctor(scope());
  EXPECT_THAT(result.text, AllOf(HasSubstr("arena test/a"), HasSubstr("ckptctl gc --job test")));
  Scope on_disk = scope();
  on_disk.arena_dir = "/usr/arenas";
  EXPECT_FALSE(doctor(on_disk).good);
}

TEST_F(CommandsTest, StatusAndDoctorReportMissingCopies) {
  start("a");
  TrainerProcess trainer(cluster_, "a", 0);
  ASSERT_EQ(trainer.command(TrainerProcess::order_create), CKPT_OK);
  ASSERT_EQ(trainer.command(TrainerProcess::order_restore), CKPT_OK);
  EXPECT_THAT(doctor(scope()).text, Not(HasSubstr("copies")));
  ASSERT_EQ(trainer.command(TrainerProcess::order_snapshot, 0), CKPT_OK);
  ASSERT_EQ(trainer.command(TrainerProcess::order_wait_commit, 0), CKPT_OK);
  EXPECT_THAT(status(scope()).text, HasSubstr("1 of 2 copies"));
  EXPECT_THAT(doctor(scope()).text, HasSubstr("1 of 2 copies"));
}

TEST_F(CommandsTest, ReportsResultsByExitStatusAndJson) {
  EXPECT_EQ(run("status").status, 1);
  start("a");
  const Ran status = run("status --json job=test");
  EXPECT_EQ(status.status, 0);
  EXPECT_EQ(nlohmann::json::parse(status.out).at("agents")[0].at("node"), "a");
  EXPECT_EQ(run("gc --job test").status, 1);
  const Ran wrong = run("status colour=red");
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.out, HasSubstr("colour"));
  EXPECT_NE(run("dance").status, 0);
  EXPECT_EQ(run("doctor --json").status, 0);
  EXPECT_EQ(run("trace --iterations 0").status, 1);
  const Ran untraced = run("trace --job test --plot trace.gif");
  EXPECT_EQ(untraced.status, 1);
  EXPECT_THAT(untraced.out, HasSubstr("name a file that ends in .png or .svg"));
  const Ran stopped = run("stop job=test");
  EXPECT_EQ(stopped.status, 0);
  EXPECT_THAT(stopped.out, HasSubstr("stopped the agent of node a"));
  EXPECT_EQ(run("stop job=test").status, 1);
  EXPECT_EQ(run("--help").status, 0);
}

}  // namespace
}  // namespace ckpt::cli
