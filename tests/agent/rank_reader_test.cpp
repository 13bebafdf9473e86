#include "agent/trainers/rank_reader.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/temporary_directory.hpp"

namespace ckpt::agent {
namespace {

using core::RankTrouble;
using std::chrono::milliseconds;
using test::TemporaryDirectory;

constexpr core::Rank rank = 3;
constexpr std::uint64_t incarnation = 2;

core::RankWatch::Limits limits() {
  core::RankWatch::Limits limits;
  limits.deadline = {1.0, 3, 4};
  limits.look_every_s = 0.1;
  return limits;
}

// Time passes as the test says. The rank's iterations take 100 ms, with a communication in their middle. tests/core has
// the rules by which ranks are in trouble.
class RankReaderTest : public ::testing::Test {
 protected:
  RankReaderTest() {
    reader_.add(rank, ::getpid(), control_, 0);
    reader_.joined(rank, incarnation);
  }
  void iterations(int count) {
    for (int i = 0; i < count; ++i) {
      mark(arena::CommKind::begin, milliseconds(40));
      mark(arena::CommKind::end, milliseconds(20));
      arena::CommWriter(control_->comm()).offered(i);
      mark(arena::CommKind::iteration, milliseconds(40));
      look();
    }
  }
  void mark(arena::CommKind kind, milliseconds later) {
    now_ += later;
    arena::CommWriter(control_->comm()).happened(kind, 0, now_);
  }
  void pass(milliseconds time) {
    for (const auto end = now_ + time; now_ < end; now_ += milliseconds(100)) look();
  }
  void look() {
    if (auto news = reader_.look(now_)) seen_ = std::move(*news);
  }
  // "" if the rank is in no trouble.
  std::string trouble() {
    look();
    return seen_.in_trouble.empty() ? "" : trouble_name(seen_.in_trouble.front().trouble);
  }

  TemporaryDirectory directory_;
  std::shared_ptr<arena::Control> control_ =
      std::make_shared<arena::Control>(arena::Control::create(directory_.path(), rank));
  RankReader reader_{limits()};
  Clock::time_point now_ = Clock::now();
  core::RanksWatched seen_;
};

TEST_F(RankReaderTest, ReadsMarksAndIterations) {
  iterations(10);
  EXPECT_EQ(trouble(), "");
  ASSERT_EQ(seen_.computing_ms.size(), 1u);
  EXPECT_NEAR(seen_.computing_ms[0].second, 80, 1);
  mark(arena::CommKind::begin, milliseconds(40));
  pass(milliseconds(1200));
  EXPECT_EQ(trouble(), "waiting");
  EXPECT_EQ(seen_.in_trouble.front().begun, 1u);
  EXPECT_EQ(seen_.in_trouble.front().per_iteration, 1u);
  EXPECT_EQ(seen_.in_trouble.front().iteration, 9);
}

TEST_F(RankReaderTest, LostMarksSuspendSuspicion) {
  iterations(10);
  for (std::size_t i = 0; i <= arena::comm_events_max; ++i) mark(arena::CommKind::iteration, milliseconds(0));
  pass(milliseconds(60'000));
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankReaderTest, NamedPauseSuspendsSuspicion) {
  iterations(10);
  arena::CommWriter(control_->comm()).pause("eval");
  EXPECT_EQ(reader_.paused(rank), "eval");
  pass(milliseconds(60'000));
  EXPECT_EQ(trouble(), "");
  arena::CommWriter(control_->comm()).resume();
  EXPECT_EQ(reader_.paused(rank), std::nullopt);
  iterations(2);
  pass(milliseconds(1200));
  EXPECT_EQ(trouble(), "computing");
}

TEST_F(RankReaderTest, SeesAStoppedProcess) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  ::kill(child, SIGSTOP);
  EXPECT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
  reader_.add(rank, child, control_, incarnation);
  pass(milliseconds(700));
  EXPECT_EQ(trouble(), "stopped");
  EXPECT_EQ(seen_.in_trouble.front().process, 'T');
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(RankReaderTest, ReadsAllMarksOfADeadRank) {
  iterations(10);
  mark(arena::CommKind::begin, milliseconds(40));
  reader_.died(rank, now_);
  EXPECT_EQ(trouble(), "dead");
  EXPECT_EQ(seen_.in_trouble.front().begun, 1u);
  EXPECT_EQ(reader_.paused(rank), std::nullopt);
  reader_.add(rank, ::getpid(), control_, 0);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankReaderTest, StopsReadingMarksOfAClosedEngine) {
  iterations(10);
  reader_.remove(rank);
  pass(milliseconds(10'000));
  EXPECT_EQ(trouble(), "");
}

}  // namespace
}  // namespace ckpt::agent
