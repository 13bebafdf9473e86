// The thread that issues: it carries one exchange after the other, and the first thing that goes wrong ends it.
#include <gmock/gmock.h>

#include <cstring>
#include <stdexcept>

#include "base/error.hpp"
#include "replicating_members.hpp"

namespace ckpt::device {
namespace {

using namespace testing_support;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST_F(CudaReplicatorTest, RunsOneExchangeAfterAnother) {
  join(1);
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(replicating_members_[0]->begin());
    replicating_member(0).allow(UINT64_MAX);
    ASSERT_TRUE(all_done(round));
    EXPECT_TRUE(replicating_member(0).has(replicating_member(0)));
  }
  EXPECT_EQ(replicating_member(0).failures(), 0);
}

TEST_F(CudaReplicatorOfTwoTest, ExchangesThePiecesOfTwoMembers) {
  join(2);
  for (int round = 1; round <= 3; ++round) {
    begin_all();
    allow_all(UINT64_MAX);
    ASSERT_TRUE(all_done(round));
  }
  EXPECT_TRUE(replicating_member(0).has(replicating_member(1)));
  EXPECT_TRUE(replicating_member(1).has(replicating_member(0)));
  EXPECT_EQ(replicating_member(0).failures() + replicating_member(1).failures(), 0);
}

TEST_F(CudaReplicatorTest, AcceptsOneExchangeAtATime) {
  join(1);
  ASSERT_TRUE(replicating_members_[0]->begin());
  EXPECT_FALSE(replicating_members_[0]->begin());
  replicating_member(0).allow(UINT64_MAX);
  ASSERT_TRUE(all_done(1));
  EXPECT_TRUE(replicating_members_[0]->begin());
}

TEST_F(CudaReplicatorOfTwoTest, AllowsStepsOneByOne) {
  join(2);
  begin_all();
  for (std::uint64_t steps = 1; steps <= leaves + 3; ++steps) {
    allow_all(steps);
    allow_all(steps / 2);  // overtaken
  }
  ASSERT_TRUE(all_done(1));
  EXPECT_TRUE(replicating_member(1).has(replicating_member(0)));
}

TEST_F(CudaReplicatorTest, ReportsHowMuchIsInSubBuffers) {
  if (!has_buttons()) GTEST_SKIP();
  hold_what_is_filled();
  for (std::uint64_t steps = 1; steps <= buffers; ++steps) {
    buttons().let(CKPT_DOUBLE_KERNEL, 1);
    EXPECT_TRUE(eventually([&] { return replicating_member(0).in_sub_buffers() == steps; }));
  }
  EXPECT_EQ(replicating_member(0).done(), 1);
}

TEST_F(CudaReplicatorOfTwoTest, ReportsHowMuchHasArrived) {
  join_and_begin(2);
  for (std::uint64_t steps = 1; steps < replicating_member(0).steps(); steps += 3) {
    allow_all(steps);
    ASSERT_TRUE(eventually(
        [&] { return replicating_member(0).received() == steps && replicating_member(1).received() == steps; }));
  }
  EXPECT_EQ(replicating_member(0).done(), 0);
  allow_all(UINT64_MAX);
  ASSERT_TRUE(all_done(1));
  EXPECT_EQ(replicating_member(0).received(), replicating_member(0).steps());
}

TEST_F(CudaReplicatorOfTwoTest, FinishedExchangeEndsAfterItsAllowedSteps) {
  join_and_begin(2);
  for (int round = 1; round <= 2; ++round) {
    allow_all(4);
    for (const auto& one : replicating_members_) one->replicator().finish(one->number());
    ASSERT_TRUE(all_done(round));
    for (const auto& one : replicating_members_) {
      EXPECT_EQ(one->received(), 4u);
      one->replicator().finish(one->number());  // what is said late
      ASSERT_TRUE(one->begin());
      one->replicator().finish(one->number() - 1);
    }
  }
  allow_all(UINT64_MAX);
  ASSERT_TRUE(all_done(3));
  EXPECT_TRUE(replicating_member(0).has(replicating_member(1)));
}

TEST_F(CudaReplicatorTest, FinishBeforeAnyAllowedStepEndsTheExchange) {
  join(1);
  begin_all();
  replicating_member(0).replicator().finish(replicating_member(0).number());
  ASSERT_TRUE(all_done(1));
  EXPECT_EQ(replicating_member(0).received(), 0u);
}

TEST_F(CudaReplicatorTest, FinishWaitsUntilThePieceIsNoLongerRead) {
  settings_.exchange.step_timeout_ms = 50;
  if (!has_buttons()) GTEST_SKIP();
  hold_what_is_filled();
  replicating_member(0).replicator().finish(replicating_member(0).number());
  EXPECT_TRUE(eventually([&] { return !replicating_member(0).replicator().works(); }));
  EXPECT_EQ(replicating_member(0).done(), 1);
  buttons().hold(CKPT_DOUBLE_KERNEL, 0);
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("made no progress"));
}

TEST_F(CudaReplicatorOfTwoTest, AbandonedExchangeReportsImmediately) {
  join_and_begin(2);
  nccl_buttons().hang(1, 1);
  allow_all(UINT64_MAX);
  replicating_member(0).replicator().give_up("the other one has given up");
  EXPECT_FALSE(replicating_member(0).replicator().works());
  EXPECT_EQ(replicating_member(0).why(), "the other one has given up");
  EXPECT_FALSE(replicating_member(0).is_stuck());
  for (const auto& one : replicating_members_) one->replicator().give_up("again");
  for (const auto& one : replicating_members_) one->leave();
  EXPECT_EQ(replicating_member(0).failures(), 1);
  EXPECT_EQ(replicating_member(0).why(), "the other one has given up");
}

TEST_F(CudaReplicatorTest, GivingUpBeforeMembersMeetIsReported) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  replicating_members_.push_back(std::make_unique<ReplicatingMember>(NcclComm::new_id(), 2, 0, settings_));
  replicating_member(0).replicator().give_up("the other one will not come");
  EXPECT_EQ(replicating_member(0).why(), "the other one will not come");
}

TEST_F(CudaReplicatorTest, LateCallsForAnExchangeDoNotReleaseTheNext) {
  join(1);
  join(1);  // another replicator, which shows how far this one would have come
  begin_all();
  allow_all(UINT64_MAX);
  ASSERT_TRUE(all_done(1));
  const std::uint64_t first = replicating_member(0).number();
  const int filled = replicating_member(0).filled() + static_cast<int>(buffers);
  begin_all();
  ASSERT_TRUE(eventually([&] { return replicating_member(0).filled() == filled; }));
  replicating_member(0).replicator().allow(first, UINT64_MAX);
  replicating_member(1).allow(UINT64_MAX);
  ASSERT_TRUE(eventually([&] { return replicating_member(1).done() == 2; }));
  EXPECT_EQ(replicating_member(0).filled(), filled);
  replicating_member(0).allow(UINT64_MAX);
  EXPECT_TRUE(all_done(2));
}

TEST_F(CudaReplicatorTest, ReportsAnyException) {
  join(1);
  ASSERT_TRUE(replicating_members_[0]->begin([](std::uint64_t) { throw std::runtime_error("out of luck"); }));
  EXPECT_EQ(replicating_member(0).why(), "out of luck");
  EXPECT_FALSE(replicating_member(0).replicator().works());
}

TEST_F(CudaReplicatorTest, RefusesAnEnvironmentThatOverridesItsNcclSettings) {
  const nccl::UniqueId id = NcclComm::new_id();
  const auto refusal_of = [&](const char* line) -> std::string {
    const char* const environment[] = {"HOME=/", "NCCL_DEBUG=WARN", line, nullptr};
    try {
      CudaReplicator(0, {id, 1, 0}, settings_, environment, [](const std::string&, bool) {});
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_EQ(refusal_of("NCCL_MAX_CTAS=4"),
            "checkpoints cannot go from GPU to GPU: the environment variable NCCL_MAX_CTAS decides how many blocks of "
            "the GPU a communicator takes, for ckptengine's communicator too; unset it");
  for (const char* const line :
       {"NCCL_MIN_CTAS=2", "NCCL_MIN_NRINGS=2", "NCCL_MIN_NCHANNELS=2", "NCCL_MIN_P2P_NCHANNELS=2",
        "NCCL_COMM_BLOCKING=1", "NCCL_COMM_ID=host:1", "NCCL_LAUNCH_ORDER_IMPLICIT=1", "CUDA_LAUNCH_BLOCKING=1"})
    EXPECT_THAT(refusal_of(line), HasSubstr(std::string(line, std::strchr(line, '='))));
  for (const char* const line : {"NCCL_MAX_CTAS=", "NCCL_COMM_ID", "NCCL_MAX_CTAS_OF_OTHERS=1", ""})
    EXPECT_EQ(refusal_of(line), "");
}

TEST_F(CudaReplicatorOfTwoTest, ReportsAHangOnceAndDoesNotRetry) {
  settings_.exchange.step_timeout_ms = 50;
  join_and_begin(2);
  nccl_buttons().hang(1, 1);
  allow_all(UINT64_MAX);
  for (const auto& one : replicating_members_) {
    // The second one may hear first that the other has given up.
    EXPECT_THAT(one->why(), AnyOf(HasSubstr("made no progress"), HasSubstr("remote process exited")));
    EXPECT_FALSE(one->is_stuck());
    EXPECT_FALSE(one->replicator().works());
    EXPECT_FALSE(one->begin());
  }
  nccl_buttons().hang(1, 0);
  replicating_members_[0]->leave();
  replicating_members_[1]->leave();
  EXPECT_EQ(replicating_member(0).failures(), 1);
  EXPECT_EQ(replicating_member(0).done(), 0);
}

TEST_F(CudaReplicatorOfTwoTest, ReportsADeadMember) {
  join_and_begin(2);
  replicating_member(0).allow(UINT64_MAX);
  nccl_buttons().die(1);
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("remote process exited"));
}

TEST_F(CudaReplicatorTest, WaitsForMissingMembersUntilTheDeadline) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.meet_timeout_ms = 50;
  replicating_members_.push_back(std::make_unique<ReplicatingMember>(NcclComm::new_id(), 2, 0, settings_));
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("connected over NCCL"));
  EXPECT_FALSE(replicating_member(0).replicator().works());
}

TEST_F(CudaReplicatorTest, WaitsForAnUnconnectedMemberUntilTheDeadline) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.meet_timeout_ms = 50;
  const nccl::UniqueId id = NcclComm::new_id();
  const NcclComm other(id, 2, 1);
  replicating_members_.push_back(std::make_unique<ReplicatingMember>(id, 2, 0, settings_));
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("connected over NCCL"));
}

TEST_F(CudaReplicatorOfTwoTest, ReportsAnErrorInTheMiddle) {
  join_and_begin(2);
  allow_all(2);
  nccl_buttons().fail(0, nccl::system_error);
  allow_all(UINT64_MAX);
  EXPECT_THAT(replicating_member(0).why(), AnyOf(HasSubstr("NCCL"), HasSubstr("nccl")));  // told, or by the next call
}

TEST_F(CudaReplicatorTest, ReportsADeadContextAsStuck) {
  join(1);
  if (!has_buttons()) GTEST_SKIP();
  ASSERT_TRUE(replicating_members_[0]->begin());
  replicating_member(0).allow(UINT64_MAX);
  ASSERT_TRUE(all_done(1));
  buttons().hold(CKPT_DOUBLE_KERNEL, 1);
  ASSERT_TRUE(replicating_members_[0]->begin());
  replicating_member(0).allow(UINT64_MAX);
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_TRUE(replicating_member(0).is_stuck());
  replicating_members_[0]->leave();
  keep_for_good(std::move(replicating_members_));
}

TEST_F(CudaReplicatorOfTwoTest, EndsInTheMiddleOfAnExchangeWithoutAReport) {
  join_and_begin(2);
  const auto groups_before = nccl_buttons().groups();
  replicating_member(0).allow(UINT64_MAX);
  ASSERT_TRUE(eventually([&] { return nccl_buttons().groups() != groups_before; }));
  for (const auto& one : replicating_members_) one->leave();
  EXPECT_EQ(replicating_member(0).failures() + replicating_member(1).failures(), 0);
  EXPECT_EQ(replicating_member(0).done() + replicating_member(1).done(), 0);
}

}  // namespace
}  // namespace ckpt::device
