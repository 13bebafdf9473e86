#include "agent/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "agent/event_log.hpp"
#include "agent/process.hpp"
#include "base/error.hpp"
#include "support.hpp"

namespace ckpt::agent {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string damaged(int number) {
  return "the coordination record /jobs/j/nodes/" + std::string(1, static_cast<char>('a' + number % 26)) +
         std::to_string(number) + " is damaged; remove it";
}

TEST(FloodGate, WritesSimilarLinesOnceAndThenTheirCount) {
  FloodGate gate;
  std::uint64_t written = 0;
  for (int i = 0; i < 1000; ++i) written += gate.pass(damaged(i), 1).size();
  EXPECT_EQ(written, FloodGate::alike_max);
  EXPECT_THAT(gate.pass(damaged(1000), 1 + FloodGate::window_s),
              ElementsAre(AllOf(HasSubstr("992 lines like this"), HasSubstr(damaged(999)))));
  EXPECT_THAT(gate.rest(), ElementsAre(damaged(1000)));
}

TEST(FloodGate, DistinguishesCausesButNotNames) {
  EXPECT_TRUE(are_alike("node alpha does not answer any more: its machine is down",
                        "node omega does not answer any more: its machine is down"));
  EXPECT_FALSE(are_alike("node alpha does not answer any more: its machine is down",
                         "node alpha does not answer any more: its agent has ended"));
  EXPECT_FALSE(are_alike("ending", "serving"));
}

TEST(FloodGate, TwoAlternatingLinesAppearOncePerGrowingWindow) {
  FloodGate gate;
  std::uint64_t written = 0;
  for (std::int64_t second = 0; second < 24 * 3600; ++second) {
    written += gate.pass("the coordination store cannot be read: damaged", second).size();
    written += gate.pass("all is well with the records of the job again", second).size();
  }
  EXPECT_LT(written, 2u * 40);
}

TEST(FloodGate, LetsEveryCauseThrough) {
  FloodGate gate;
  for (const char* line : {"the disk is full and nothing is stored on it", "rank 3 was claimed anew by its launcher",
                           "node n1 does not answer any more", "node n2 does not answer any more"})
    EXPECT_THAT(gate.pass(line, 5), ElementsAre(line));
}

TEST(EventLog, CountsSimilarNoticesWhenThereAreTooManyAndKeepsOthers) {
  EventLog event_log(silent_log());
  event_log.note("the disk is full and nothing is stored on it");
  for (int i = 0; i < 1000; ++i) event_log.note(damaged(i));
  EXPECT_THAT(event_log.notices(), SizeIs(1 + FloodGate::alike_max));
  EXPECT_EQ(event_log.notices().front().text, "the disk is full and nothing is stored on it");
  EXPECT_EQ(event_log.notices().back().text, damaged(999));
  EXPECT_EQ(event_log.notices().back().times, 1000 - FloodGate::alike_max + 1);
}

TEST(Log, CountsLinesOfOneCauseInsteadOfWritingThemAll) {
  test::TemporaryDirectory directory{test::in_memory};
  const std::string path = directory.path() + "/ckptd.log";
  {
    const Log log = open_log(path);
    for (int i = 0; i < 1000; ++i) log->warn(damaged(i));
  }
  const std::string text = text_of(path);
  EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 100);
  EXPECT_THAT(text, HasSubstr(damaged(0)));
}

TEST(Log, IsCreatedAgainAfterItsRemoval) {
  test::TemporaryDirectory directory{test::in_memory};
  const std::string path = directory.path() + "/node/ckptd.log";
  const Log log = open_log(path);
  log->info("before");
  EXPECT_THAT(text_of(path), HasSubstr("before"));
  std::filesystem::remove_all(directory.path() + "/node");
  log->warn("somebody removed the arena");
  EXPECT_THAT(text_of(path), HasSubstr("somebody removed the arena"));
}

TEST(Log, NamesTheDirectoryThatCannotBeMadeAndTheOption) {
  try {
    open_log("/proc/nowhere/ckptd.log");
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_THAT(failure.what(), AllOf(HasSubstr("directory /proc/nowhere"), HasSubstr("option log_file")));
  }
}

TEST(Oom, AsksTheKernelToKillTheAgentLastAndLogsARefusal) {
  test::TemporaryDirectory directory{test::in_memory};
  const std::string log_path = directory.path() + "/log", adjustment = directory.path() + "/oom_score_adj";
  const Log log = open_log(log_path);
  std::ofstream(adjustment) << "0\n";
  be_ended_last(log, adjustment);
  EXPECT_THAT(text_of(adjustment), HasSubstr("-999"));
  EXPECT_THAT(text_of(log_path), IsEmpty());
  be_ended_last(log, "/proc/sys/kernel/random/entropy_avail");  // a number that nobody can write
  EXPECT_THAT(text_of(log_path), AllOf(HasSubstr("oom_score_adj stays"), HasSubstr("CAP_SYS_RESOURCE")));
}

}  // namespace
}  // namespace ckpt::agent
