#include "agent/trainers/rank_watch.hpp"

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

RankWatch::Limits limits() {
  RankWatch::Limits limits;
  limits.deadline = {1.0, 3, 4};
  limits.look_every_ms = 100;
  return limits;
}

// Time passes as the test says. The rank's iterations take 100 ms, with a communication in their middle.
class RankWatchTest : public ::testing::Test {
 protected:
  RankWatchTest() {
    watch_.add(rank, ::getpid(), control_, 0);
    watch_.joined(rank, incarnation);
  }
  void iterations(int count) {
    for (int i = 0; i < count; ++i) {
      mark(arena::CommKind::begin, milliseconds(40));
      mark(arena::CommKind::end, milliseconds(20));
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
    if (auto news = watch_.look(now_)) seen_ = std::move(*news);
  }
  // "" if the rank is in no trouble.
  std::string trouble() {
    look();
    return seen_.in_trouble.empty() ? "" : trouble_name(seen_.in_trouble.front().trouble);
  }

  TemporaryDirectory directory_;
  std::shared_ptr<arena::Control> control_ =
      std::make_shared<arena::Control>(arena::Control::create(directory_.path(), rank));
  RankWatch watch_{limits()};
  Clock::time_point now_ = Clock::now();
  core::RanksWatched seen_;
};

TEST_F(RankWatchTest, ARankThatMakesItsMarksIsInNoTrouble) {
  iterations(50);
  EXPECT_EQ(trouble(), "");
  ASSERT_EQ(seen_.computing_ms.size(), 1u);
  EXPECT_NEAR(seen_.computing_ms[0].second, 80, 1);
}

TEST_F(RankWatchTest, SilenceBetweenCommunicationsIsAHangInComputing) {
  iterations(10);
  pass(milliseconds(900));
  EXPECT_EQ(trouble(), "");
  pass(milliseconds(300));
  EXPECT_EQ(trouble(), "computing");
  EXPECT_EQ(seen_.in_trouble.front().incarnation, incarnation);
  EXPECT_EQ(seen_.in_trouble.front().begun, 0u);
  iterations(1);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, SilenceInACommunicationIsWaiting) {
  iterations(10);
  mark(arena::CommKind::begin, milliseconds(40));
  pass(milliseconds(1200));
  EXPECT_EQ(trouble(), "waiting");
  EXPECT_EQ(seen_.in_trouble.front().begun, 1u);
}

TEST_F(RankWatchTest, NothingIsSuspectedBeforeAPatternIsKnown) {
  iterations(4);
  pass(milliseconds(60'000));
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, ARestoreForgetsWhatWasLearned) {
  iterations(10);
  watch_.joined(rank, 0);
  pass(milliseconds(60'000));
  watch_.joined(rank, incarnation + 1);
  iterations(2);
  pass(milliseconds(60'000));
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, APauseSuspendsSuspicionAndHasAName) {
  iterations(10);
  arena::CommWriter(control_->comm()).pause("eval");
  EXPECT_EQ(watch_.paused(rank), "eval");
  pass(milliseconds(60'000));
  EXPECT_EQ(trouble(), "");
  arena::CommWriter(control_->comm()).resume();
  EXPECT_EQ(watch_.paused(rank), std::nullopt);
  iterations(2);
  pass(milliseconds(1200));
  EXPECT_EQ(trouble(), "computing");
}

TEST_F(RankWatchTest, LargerSlotsSuspendSuspicionUntilTheNextIteration) {
  iterations(10);
  watch_.interrupted(rank, now_);
  pass(milliseconds(60'000));
  EXPECT_EQ(trouble(), "");
  iterations(1);
  pass(milliseconds(1200));
  EXPECT_EQ(trouble(), "computing");
}

TEST_F(RankWatchTest, AnAgentThatDidNotLookGivesEveryRankItsWholeTimeAgain) {
  iterations(10);
  now_ += milliseconds(5000);
  EXPECT_EQ(trouble(), "");
  pass(milliseconds(900));
  EXPECT_EQ(trouble(), "");
  pass(milliseconds(300));
  EXPECT_EQ(trouble(), "computing");
}

TEST_F(RankWatchTest, AStoppedProcessIsNamedOnceTheStopHasLasted) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (;;) ::pause();
  }
  ::kill(child, SIGSTOP);
  EXPECT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
  watch_.add(rank, child, control_, incarnation);
  pass(milliseconds(400));
  EXPECT_EQ(trouble(), "");
  pass(milliseconds(300));
  EXPECT_EQ(trouble(), "stopped");
  EXPECT_EQ(seen_.in_trouble.front().process, 'T');
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(RankWatchTest, ADeadRankIsNamedUntilItHasANewTrainer) {
  iterations(10);
  watch_.died(rank, now_);
  pass(milliseconds(10'000));
  EXPECT_EQ(trouble(), "dead");
  watch_.add(rank, ::getpid(), control_, 0);
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, AClosedEngineIsWatchedNoMore) {
  iterations(10);
  watch_.remove(rank);
  pass(milliseconds(10'000));
  EXPECT_EQ(trouble(), "");
}

TEST_F(RankWatchTest, TimesAloneAreNoNews) {
  iterations(10);
  watch_.died(rank, now_);
  int news = 0;
  for (int i = 0; i < 100; ++i, now_ += milliseconds(100)) news += watch_.look(now_).has_value() ? 1 : 0;
  EXPECT_EQ(news, 1);
}

}  // namespace
}  // namespace ckpt::agent
