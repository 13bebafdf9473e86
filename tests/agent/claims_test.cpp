#include "agent/trainers/claims.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/temporary_directory.hpp"

namespace ckpt::agent {
namespace {

constexpr core::Rank claimed = 3;

Claimant claimant_of(pid_t pid, std::uint64_t instance) {
  return {claimed, instance, 0, "rank3", "rank3.private", Process::open(pid)};
}

// A trainer that an earlier agent has recorded, and that ends while this agent starts.
class ClaimsTest : public ::testing::Test {
 protected:
  ClaimsTest() : trainer_(::fork()) {
    if (trainer_ == 0) {
      ::pause();
      ::_exit(0);
    }
    Claims earlier(directory_.path());
    Claimant claimant = claimant_of(trainer_, 77);
    EXPECT_EQ(earlier.claim(claimant).verdict, Claims::Verdict::admitted);
    EXPECT_EQ(living_trainers(directory_.path()).size(), 1u);
    ::kill(trainer_, SIGKILL);
    ::waitpid(trainer_, nullptr, 0);
  }

  test::TemporaryDirectory directory_{test::in_memory};
  const pid_t trainer_;
};

// Otherwise its slots would stay granted, and no agent would read what the trainer left in them.
TEST_F(ClaimsTest, ATrainerThatEndsWhileAnAgentStartsIsRetiredOnce) {
  EXPECT_TRUE(living_trainers(directory_.path()).empty());
  Claims claims(directory_.path());
  EXPECT_EQ(claims.sweep_due_ms(), 0);
  const auto retired = claims.sweep();
  ASSERT_EQ(retired.size(), 1u);
  EXPECT_EQ(retired[0].rank, claimed);
  EXPECT_EQ(retired[0].instance, 77u);
  EXPECT_TRUE(retired[0].died);
  EXPECT_TRUE(claims.sweep().empty());
  EXPECT_TRUE(Claims(directory_.path()).sweep().empty()) << "nor by the next agent";
}

TEST_F(ClaimsTest, SuccessorRetiresTheEndedTrainerAndStays) {
  Claims claims(directory_.path());
  Claimant next = claimant_of(::getpid(), 78);
  const Claims::Answer answer = claims.claim(next);
  EXPECT_EQ(answer.verdict, Claims::Verdict::admitted);
  EXPECT_EQ(answer.retired_instance, 77u);
  EXPECT_TRUE(claims.sweep().empty());
  EXPECT_EQ(living_trainers(directory_.path()).size(), 1u);
}

}  // namespace
}  // namespace ckpt::agent
