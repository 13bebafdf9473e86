#include "agent/member_hook.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "support.hpp"

namespace ckpt::agent {
namespace {

const MemberNews replaced{"job7", "replaced", "node2", "spare1", ""};

class MemberHooks : public ::testing::Test {
 protected:
  std::string said() const {
    std::ostringstream text;
    text << std::ifstream(directory_ + "/said").rdbuf();
    return text.str();
  }
  const test::TemporaryDirectory folder_{test::in_memory};
  const std::string& directory_ = folder_.path();
};

TEST_F(MemberHooks, PassTheChangeToACommandInItsEnvironment) {
  call_member_hook(
      "echo $CKPTENGINE_MEMBER_JOB $CKPTENGINE_MEMBER_CHANGE $CKPTENGINE_MEMBER_NODE $CKPTENGINE_MEMBER_REPLACEMENT "
      "> " +
          directory_ + "/said",
      replaced, 10'000, {});
  EXPECT_EQ(said(), "job7 replaced node2 spare1\n");
}

// An agent that the command starts would take them for its own.
TEST_F(MemberHooks, HideTheAgentsOptionsFromCommands) {
  ASSERT_EQ(::setenv("CKPTENGINE_NODE", "somebody", 1), 0);
  call_member_hook("env | grep '^CKPTENGINE_' | grep -vc '^CKPTENGINE_MEMBER_' > " + directory_ + "/said; true",
                   replaced, 10'000, {});
  ::unsetenv("CKPTENGINE_NODE");
  EXPECT_EQ(said(), "0\n");
}

TEST_F(MemberHooks, HideTheAgentsDescriptorsFromCommands) {
  const int open = ::fcntl(STDERR_FILENO, F_DUPFD, 100);
  ASSERT_GE(open, 100);
  call_member_hook("ls /proc/$$/fd > " + directory_ + "/said", replaced, 10'000, {});
  ::close(open);
  EXPECT_EQ(said().find(std::to_string(open)), std::string::npos) << said();
}

TEST_F(MemberHooks, ReportHowACommandFailed) {
  const auto why = [](const std::string& command, std::int64_t timeout_ms) -> std::string {
    try {
      call_member_hook(command, replaced, timeout_ms, {});
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_EQ(why("exit 3", 10'000), "the command ended with status 3; correct it (option member_hook)");
  EXPECT_EQ(why("kill -9 $$", 10'000), "signal 9 ended the command; correct it (option member_hook)");
  EXPECT_EQ(why("sleep 1000", 50).rfind("the command did not end within 50 ms and was killed", 0), 0u);
  EXPECT_NE(why("/does/not/exist", 10'000), "");
}

// The writer is the command's child: with the command alone it would go on.
TEST_F(MemberHooks, KillAllProcessesOfALateCommand) {
  const std::string fifo = directory_ + "/fifo";
  ASSERT_EQ(::system(("mkfifo " + fifo).c_str()), 0);
  const int reader = ::open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_THROW(call_member_hook("(sleep 1000) > " + fifo + " & wait", replaced, 300, {}), Failure);
  ASSERT_EQ(::fcntl(reader, F_SETFL, 0), 0);
  char byte = 0;
  EXPECT_EQ(::read(reader, &byte, 1), 0);  // returns when nobody has it open for writing any more
  ::close(reader);
}

TEST_F(MemberHooks, NeverBlockTheirCaller) {
  MemberHook hook("sleep 1000", silent_log());
  for (int i = 0; i < 1000; ++i) hook.notify(replaced);
}  // nor who ends them

TEST_F(MemberHooks, RunInOrder) {
  const std::string command = "echo $CKPTENGINE_MEMBER_NODE >> " + directory_ + "/said";
  {
    MemberHook hook(command, silent_log());
    for (const char* node : {"a", "b", "c"}) hook.notify({"job", "lost", node, "", "ended"});
    const Deadline deadline = Deadline::in_ms(20'000);
    while (said() != "a\nb\nc\n" && !deadline.passed()) ::usleep(1000);
  }
  EXPECT_EQ(said(), "a\nb\nc\n");
}

TEST_F(MemberHooks, FailForAnUnreachableAddress) {
  EXPECT_TRUE(is_url("https://example.invalid/hook"));
  EXPECT_FALSE(is_url("/usr/bin/replace --node"));
  EXPECT_THROW(call_member_hook("http://127.0.0.1:1/", replaced, 2'000, {}), Failure);
}

TEST_F(MemberHooks, DoNothingWithoutACommand) {
  MemberHook hook("", silent_log());
  hook.notify(replaced);
}

}  // namespace
}  // namespace ckpt::agent
