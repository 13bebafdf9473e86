// How the thread that issues ends: in time, whatever hangs, and with all that it has been given known to be still.
#include <gmock/gmock.h>

#include <atomic>
#include <stdexcept>

#include "replicating_members.hpp"

namespace ckpt::device {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;

// As one enters a fixture: what is there before, and is again when all threads have ended.
struct Before {
  std::uint64_t communicators = nccl_buttons().communicators(), allocations = buttons().allocations();
  std::uint64_t aborts = nccl_buttons().aborts(), orphans = nccl_buttons().orphans();
};

TEST_F(CudaReplicatorOfTwoTest, OrderlyEndWaitsForNccl) {
  const Before before;
  join(2);
  begin_all();
  allow_all(UINT64_MAX);
  ASSERT_TRUE(all_done(1));
  nccl_buttons().slow_aborts(200'000);
  for (const auto& one : replicating_members_) one->leave();
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators);
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 2);
  EXPECT_EQ(replicating_member(0).failures() + replicating_member(1).failures(), 0);
}

// NCCL may keep in its memory what a group is at.
TEST_F(CudaReplicatorOfTwoTest, IssuingThreadStaysUntilNcclHasEnded) {
  const Before before;
  settings_.end_timeout_ms = 50;
  join_and_begin(2);
  nccl_buttons().hold_aborts(1);
  for (const auto& one : replicating_members_) one->leave();  // returns
  EXPECT_TRUE(eventually([&] { return nccl_buttons().aborts() == before.aborts + 2; }));
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators + 2);
  nccl_buttons().hold_aborts(0);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators);
  EXPECT_EQ(nccl_buttons().orphans(), before.orphans);
}

TEST_F(CudaReplicatorOfTwoTest, FreesMemoryOnceNcclReleasesIt) {
  settings_.exchange.step_timeout_ms = settings_.end_timeout_ms = 50;
  join_and_begin(2);
  const auto allocations = buttons().allocations();
  nccl_buttons().hang(-1, 1);
  nccl_buttons().hold_aborts(1);
  allow_all(UINT64_MAX);
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("made no progress"));
  for (const auto& one : replicating_members_) one->leave();
  EXPECT_EQ(buttons().allocations(), allocations);
  nccl_buttons().hold_aborts(0);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(buttons().allocations(), allocations - 2);
}

// What hangs may be what the copies wait for.
TEST_F(CudaReplicatorTest, EndsNcclBeforeWaitingForCopies) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.end_timeout_ms = 100'000;  // longer than the test would wait
  fail_with_a_copy_under_way();
  EXPECT_TRUE(eventually([&] { return nccl_buttons().communicators() == before.communicators; }));
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 1);
  EXPECT_EQ(replicating_member(0).failures(), 0);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("NCCL"));
  EXPECT_FALSE(replicating_member(0).is_stuck());
}

TEST_F(CudaReplicatorTest, ReportsAGpuThatDoesNotEndACopyAsStuck) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.end_timeout_ms = 50;
  fail_with_a_copy_under_way();
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("NCCL"));
  EXPECT_TRUE(replicating_member(0).is_stuck());
}

TEST_F(CudaReplicatorTest, ReportsAHungCopyWhenReplicationEnds) {
  settings_.end_timeout_ms = 50;
  join_and_begin(1);
  if (!has_nccl_buttons()) GTEST_SKIP();
  const auto sent_before = nccl_buttons().sent_bytes();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  replicating_member(0).allow(UINT64_MAX);
  ASSERT_TRUE(eventually([&] { return nccl_buttons().sent_bytes() == sent_before + buffers * leaf_bytes; }));
  replicating_members_[0]->leave();
  EXPECT_EQ(replicating_member(0).failures(), 1);
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("did not end a copy"));
  EXPECT_TRUE(replicating_member(0).is_stuck());
}

// What it reads may be gone by then.
TEST_F(CudaReplicatorTest, FillsNothingAfterItsEnd) {
  settings_.end_timeout_ms = 50;
  join(1);
  std::atomic<bool> is_let{false};
  std::atomic<int> calls{0};
  ASSERT_TRUE(replicating_members_[0]->begin([&](std::uint64_t) {
    ++calls;
    while (!is_let) std::this_thread::yield();
  }));
  ASSERT_TRUE(eventually([&] { return calls == 1; }));
  replicating_members_[0]->leave();
  EXPECT_TRUE(replicating_member(0).is_stuck()) << "one that has not come back may still read";
  is_let = true;
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(calls, 1);
}

// Freeing memory waits for it.
TEST_F(CudaReplicatorTest, EndsInTimeWhileTrainingHangs) {
  settings_.end_timeout_ms = 50;
  join_and_begin(1);
  if (!has_nccl_buttons()) GTEST_SKIP();
  const GpuStream training;
  const GpuBytes to(1);
  const auto allocations = buttons().allocations();
  const std::byte byte{1};
  buttons().hold(CKPT_DOUBLE_TO_DEVICE, 1);
  ASSERT_CUDA(cuMemcpyHtoDAsync(to.pointer(), &byte, 1, training));
  replicating_members_[0]->leave();  // returns
  EXPECT_EQ(buttons().allocations(), allocations);
  buttons().hold(CKPT_DOUBLE_TO_DEVICE, 0);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(buttons().allocations(), allocations - 1);
}

TEST_F(CudaReplicatorTest, EndsInTimeIfNcclHangsInItsInit) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.end_timeout_ms = 50;
  nccl_buttons().hold_inits(1);
  join(1);
  ASSERT_TRUE(replicating_members_[0]->begin());
  const Before before;
  replicating_members_[0]->leave();  // returns
  nccl_buttons().hold_inits(0);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators);
  EXPECT_EQ(buttons().allocations(), before.allocations);
  EXPECT_EQ(replicating_member(0).filled() + replicating_member(0).done() + replicating_member(0).failures(), 0);
}

// Where training waits in the driver for our chunk, with a lock that every call takes.
TEST_F(CudaReplicatorTest, AbortFreesADriverThatWaitsForTheChunk) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.exchange.step_timeout_ms = 50;
  hang_in_the_driver(CKPT_DOUBLE_CALLS_WAIT_FOR_KERNEL);
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("did not return"));
  EXPECT_FALSE(replicating_member(0).is_stuck());
  EXPECT_FALSE(replicating_member(0).replicator().works());
  EXPECT_TRUE(eventually([&] { return nccl_buttons().communicators() == before.communicators; }));
  replicating_members_[0]->leave();
  EXPECT_TRUE(all_gone());
  EXPECT_TRUE(replicating_member(0).has_nothing()) << "what the abort has cut off arrives nowhere";
  EXPECT_EQ(replicating_member(0).failures(), 1);
  replicating_members_.clear();
  EXPECT_EQ(buttons().allocations(), before.allocations);
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 1);
  EXPECT_EQ(nccl_buttons().orphans(), before.orphans);
}

TEST_F(CudaReplicatorTest, ReportsADriverThatNeverAnswersAsStuckAndEndsNccl) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.exchange.step_timeout_ms = settings_.end_timeout_ms = 50;
  hang_in_the_driver(CKPT_DOUBLE_CALLS_HELD);
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("did not return"));
  EXPECT_TRUE(replicating_member(0).is_stuck());
  EXPECT_TRUE(eventually([&] { return nccl_buttons().communicators() == before.communicators; }));
  replicating_members_[0]->leave();  // returns
  EXPECT_FALSE(replicating_member(0).gone());
  buttons().hold_calls(CKPT_DOUBLE_CALLS_RETURN);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(replicating_member(0).failures(), 1);
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 1);
  EXPECT_EQ(nccl_buttons().orphans(), before.orphans);
}

TEST_F(CudaReplicatorTest, IssuingThreadWaitsForAnotherThreadsAbort) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.exchange.step_timeout_ms = 50;
  nccl_buttons().hold_aborts(1);
  hang_in_the_driver(CKPT_DOUBLE_CALLS_WAIT_FOR_KERNEL);
  const auto allocations = buttons().allocations();
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("did not return"));
  EXPECT_FALSE(replicating_member(0).is_stuck()) << "its copies are over, whatever NCCL does";
  EXPECT_EQ(buttons().allocations(), allocations);
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators + 1);
  nccl_buttons().hold_aborts(0);
  replicating_members_[0]->leave();
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators);
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 1);
  EXPECT_EQ(nccl_buttons().orphans(), before.orphans);
}

TEST_F(CudaReplicatorTest, GivingUpWithAHungDriverWaitsForNoStep) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  hang_in_the_driver(CKPT_DOUBLE_CALLS_WAIT_FOR_KERNEL);
  replicating_member(0).replicator().give_up("the other one has given up");
  EXPECT_EQ(replicating_member(0).why(), "the other one has given up");
  EXPECT_FALSE(replicating_member(0).is_stuck());
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 1);
}

TEST_F(CudaReplicatorTest, GivingUpDuringAHungFillIsReported) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.end_timeout_ms = 50;
  join(1);
  std::atomic<bool> fills{false};
  ASSERT_TRUE(replicating_members_[0]->begin([&](std::uint64_t) {
    buttons().hold_calls(CKPT_DOUBLE_CALLS_HELD);
    fills = true;
  }));
  ASSERT_TRUE(eventually([&] { return fills.load(); }));
  replicating_member(0).replicator().give_up("the other one has given up");
  EXPECT_EQ(replicating_member(0).why(), "the other one has given up");
  EXPECT_TRUE(replicating_member(0).is_stuck());
}

TEST_F(CudaReplicatorTest, EndsNcclIfTheDriverHangsAfterAFailure) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.end_timeout_ms = 50;
  join(1);
  ASSERT_TRUE(replicating_members_[0]->begin([](std::uint64_t) {
    buttons().hold_calls(CKPT_DOUBLE_CALLS_HELD);
    throw std::runtime_error("out of luck");
  }));
  EXPECT_EQ(replicating_member(0).why(), "out of luck");
  EXPECT_TRUE(replicating_member(0).is_stuck());
  EXPECT_TRUE(eventually([&] { return nccl_buttons().aborts() == before.aborts + 1; }));
  EXPECT_TRUE(eventually([&] { return nccl_buttons().communicators() == before.communicators; }));
}

TEST_F(CudaReplicatorTest, WaitsForAHungDriverWithoutAChunkInFlight) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.exchange.step_timeout_ms = 50;
  join(1);
  join(1);  // another replicator, which shows that the first one would have given up
  begin_all();
  ASSERT_TRUE(eventually([&] { return replicating_member(0).in_sub_buffers() == buffers; }));
  ASSERT_TRUE(eventually([&] { return replicating_member(1).in_sub_buffers() == buffers; }));
  buttons().hold_calls(CKPT_DOUBLE_CALLS_HELD);
  replicating_member(1).allow(1);
  EXPECT_TRUE(eventually([&] { return !replicating_member(1).replicator().works(); }));
  EXPECT_TRUE(replicating_member(0).replicator().works());
}

TEST_F(CudaReplicatorTest, ReportsAHungDriverWhileMembersMeet) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.meet_timeout_ms = settings_.end_timeout_ms = 50;
  nccl_buttons().hold_inits(1);
  join(1);
  buttons().hold_calls(CKPT_DOUBLE_CALLS_HELD);
  nccl_buttons().hold_inits(0);
  EXPECT_THAT(replicating_member(0).why(), HasSubstr("did not return"));
  EXPECT_FALSE(replicating_member(0).is_stuck()) << "nothing was given to it";
  replicating_members_[0]->leave();  // returns
  buttons().hold_calls(CKPT_DOUBLE_CALLS_RETURN);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators);
  EXPECT_EQ(nccl_buttons().orphans(), before.orphans);
}

TEST_F(CudaReplicatorOfTwoTest, NeverDisturbsTheCaptureOfAGraph) {
  join_and_begin(2);
  const GpuStream training;
  const auto disturbed = buttons().disturbed_captures();
  ASSERT_CUDA(cuStreamBeginCapture(training, CU_STREAM_CAPTURE_MODE_GLOBAL));
  allow_all(UINT64_MAX);
  EXPECT_TRUE(all_done(1));
  begin_all();
  for (const auto& one : replicating_members_) one->leave();  // in the middle
  EXPECT_EQ(buttons().disturbed_captures(), disturbed);
  CUgraph graph = nullptr;
  ASSERT_CUDA(cuStreamEndCapture(training, &graph));
}

TEST_F(CudaReplicatorTest, EndsBeforeItsMembersMeet) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  replicating_members_.push_back(std::make_unique<ReplicatingMember>(NcclComm::new_id(), 2, 0, settings_));
  replicating_members_[0]->begin();
  replicating_members_[0]->leave();
  EXPECT_EQ(replicating_member(0).failures(), 0);
}

}  // namespace
}  // namespace ckpt::device
