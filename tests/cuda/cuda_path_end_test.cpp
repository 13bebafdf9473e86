// How the thread that issues ends: in time, whatever hangs, and with all that it has been given known to be still.
#include <gmock/gmock.h>

#include <atomic>
#include <stdexcept>

#include "walkers.hpp"

namespace ckpt::device {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;

// As one enters a fixture: what is there before, and is again when all threads have ended.
struct Before {
  std::uint64_t communicators = nccl_buttons().communicators(), allocations = buttons().allocations();
  std::uint64_t aborts = nccl_buttons().aborts(), orphans = nccl_buttons().orphans();
};

TEST_F(CudaPathOfTwoTest, AnOrderlyEndWaitsUntilNcclHasEnded) {
  const Before before;
  join(2);
  begin_all();
  allow_all(UINT64_MAX);
  ASSERT_TRUE(all_done(1));
  nccl_buttons().slow_aborts(200'000);
  for (const auto& one : walkers_) one->leave();
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators);
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 2);
  EXPECT_EQ(walker(0).failures() + walker(1).failures(), 0);
}

// NCCL may keep in its memory what a group is at.
TEST_F(CudaPathOfTwoTest, TheThreadThatIssuesIsThereUntilNcclHasEnded) {
  const Before before;
  settings_.end_timeout_ms = 50;
  join_and_begin(2);
  nccl_buttons().hold_aborts(1);
  for (const auto& one : walkers_) one->leave();  // returns
  EXPECT_TRUE(eventually([&] { return nccl_buttons().aborts() == before.aborts + 2; }));
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators + 2);
  nccl_buttons().hold_aborts(0);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators);
  EXPECT_EQ(nccl_buttons().orphans(), before.orphans);
}

TEST_F(CudaPathOfTwoTest, WhatNcclDoesNotLetGoOfIsFreedWhenItDoes) {
  settings_.exchange.step_timeout_ms = settings_.end_timeout_ms = 50;
  join_and_begin(2);
  const auto allocations = buttons().allocations();
  nccl_buttons().hang(-1, 1);
  nccl_buttons().hold_aborts(1);
  allow_all(UINT64_MAX);
  EXPECT_THAT(walker(0).why(), HasSubstr("got no further"));
  for (const auto& one : walkers_) one->leave();
  EXPECT_EQ(buttons().allocations(), allocations);
  nccl_buttons().hold_aborts(0);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(buttons().allocations(), allocations - 2);
}

// What hangs may be what the copies wait for.
TEST_F(CudaPathTest, NcclIsEndedBeforeCopiesAreWaitedFor) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.end_timeout_ms = 100'000;  // longer than the test would wait
  fail_with_a_copy_under_way();
  EXPECT_TRUE(eventually([&] { return nccl_buttons().communicators() == before.communicators; }));
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 1);
  EXPECT_EQ(walker(0).failures(), 0);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  EXPECT_THAT(walker(0).why(), HasSubstr("NCCL"));
  EXPECT_FALSE(walker(0).is_stuck());
}

TEST_F(CudaPathTest, AGpuThatDoesNotEndACopyIsToldAsStuck) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.end_timeout_ms = 50;
  fail_with_a_copy_under_way();
  EXPECT_THAT(walker(0).why(), HasSubstr("NCCL"));
  EXPECT_TRUE(walker(0).is_stuck());
}

TEST_F(CudaPathTest, ACopyThatDoesNotEndIsToldWhenThePathIsToEnd) {
  settings_.end_timeout_ms = 50;
  join_and_begin(1);
  if (!has_nccl_buttons()) GTEST_SKIP();
  const auto sent_before = nccl_buttons().sent_bytes();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  walker(0).allow(UINT64_MAX);
  ASSERT_TRUE(eventually([&] { return nccl_buttons().sent_bytes() == sent_before + buffers * leaf_bytes; }));
  walkers_[0]->leave();
  EXPECT_EQ(walker(0).failures(), 1);
  EXPECT_THAT(walker(0).why(), HasSubstr("did not end a copy"));
  EXPECT_TRUE(walker(0).is_stuck());
}

// What it reads may be gone by then.
TEST_F(CudaPathTest, NothingIsFilledOnceItHasEnded) {
  settings_.end_timeout_ms = 50;
  join(1);
  std::atomic<bool> is_let{false};
  std::atomic<int> calls{0};
  ASSERT_TRUE(walkers_[0]->begin([&](std::uint64_t) {
    ++calls;
    while (!is_let) std::this_thread::yield();
  }));
  ASSERT_TRUE(eventually([&] { return calls == 1; }));
  walkers_[0]->leave();
  EXPECT_TRUE(walker(0).is_stuck()) << "one that has not come back may still read";
  is_let = true;
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(calls, 1);
}

// Freeing memory waits for it.
TEST_F(CudaPathTest, EndsInTimeWhereWorkOfTrainingHangs) {
  settings_.end_timeout_ms = 50;
  join_and_begin(1);
  if (!has_nccl_buttons()) GTEST_SKIP();
  const GpuStream training;
  const GpuBytes to(1);
  const auto allocations = buttons().allocations();
  const std::byte byte{1};
  buttons().hold(CKPT_DOUBLE_TO_DEVICE, 1);
  ASSERT_CUDA(cuMemcpyHtoDAsync(to.pointer(), &byte, 1, training));
  walkers_[0]->leave();  // returns
  EXPECT_EQ(buttons().allocations(), allocations);
  buttons().hold(CKPT_DOUBLE_TO_DEVICE, 0);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(buttons().allocations(), allocations - 1);
}

TEST_F(CudaPathTest, EndsInTimeWhereNcclDoesNotComeBackFromItsBeginning) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.end_timeout_ms = 50;
  nccl_buttons().hold_inits(1);
  join(1);
  ASSERT_TRUE(walkers_[0]->begin());
  const Before before;
  walkers_[0]->leave();  // returns
  nccl_buttons().hold_inits(0);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators);
  EXPECT_EQ(buttons().allocations(), before.allocations);
  EXPECT_EQ(walker(0).filled() + walker(0).done() + walker(0).failures(), 0);
}

// Where training waits in the driver for our chunk, with a lock that every call takes.
TEST_F(CudaPathTest, ADriverThatAnswersOnceTheChunkHasEndedIsFreedByTheAbort) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.exchange.step_timeout_ms = 50;
  hang_in_the_driver(CKPT_DOUBLE_CALLS_WAIT_FOR_KERNEL);
  EXPECT_THAT(walker(0).why(), HasSubstr("did not come back"));
  EXPECT_FALSE(walker(0).is_stuck());
  EXPECT_FALSE(walker(0).path().works());
  EXPECT_TRUE(eventually([&] { return nccl_buttons().communicators() == before.communicators; }));
  walkers_[0]->leave();
  EXPECT_TRUE(all_gone());
  EXPECT_TRUE(walker(0).has_nothing()) << "what the abort has cut off lands nowhere";
  EXPECT_EQ(walker(0).failures(), 1);
  walkers_.clear();
  EXPECT_EQ(buttons().allocations(), before.allocations);
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 1);
  EXPECT_EQ(nccl_buttons().orphans(), before.orphans);
}

TEST_F(CudaPathTest, ADriverThatNeverAnswersIsToldAsStuckAndNcclEndsAllTheSame) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.exchange.step_timeout_ms = settings_.end_timeout_ms = 50;
  hang_in_the_driver(CKPT_DOUBLE_CALLS_HELD);
  EXPECT_THAT(walker(0).why(), HasSubstr("did not come back"));
  EXPECT_TRUE(walker(0).is_stuck());
  EXPECT_TRUE(eventually([&] { return nccl_buttons().communicators() == before.communicators; }));
  walkers_[0]->leave();  // returns
  EXPECT_FALSE(walker(0).gone());
  buttons().hold_calls(CKPT_DOUBLE_CALLS_RETURN);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(walker(0).failures(), 1);
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 1);
  EXPECT_EQ(nccl_buttons().orphans(), before.orphans);
}

TEST_F(CudaPathTest, TheThreadThatIssuesWaitsForAnAbortThatAnotherOneHasBegun) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.exchange.step_timeout_ms = 50;
  nccl_buttons().hold_aborts(1);
  hang_in_the_driver(CKPT_DOUBLE_CALLS_WAIT_FOR_KERNEL);
  const auto allocations = buttons().allocations();
  EXPECT_THAT(walker(0).why(), HasSubstr("did not come back"));
  EXPECT_FALSE(walker(0).is_stuck()) << "its copies are over, whatever NCCL does";
  EXPECT_EQ(buttons().allocations(), allocations);
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators + 1);
  nccl_buttons().hold_aborts(0);
  walkers_[0]->leave();
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators);
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 1);
  EXPECT_EQ(nccl_buttons().orphans(), before.orphans);
}

TEST_F(CudaPathTest, WhatIsGivenUpWhileTheDriverDoesNotAnswerWaitsForNoStep) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  hang_in_the_driver(CKPT_DOUBLE_CALLS_WAIT_FOR_KERNEL);
  walker(0).path().give_up("the other one has given up");
  EXPECT_EQ(walker(0).why(), "the other one has given up");
  EXPECT_FALSE(walker(0).is_stuck());
  EXPECT_EQ(nccl_buttons().aborts(), before.aborts + 1);
}

TEST_F(CudaPathTest, WhatIsGivenUpWhileAFillDoesNotComeBackIsToldThoughNoStepIsAllowed) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.end_timeout_ms = 50;
  join(1);
  std::atomic<bool> fills{false};
  ASSERT_TRUE(walkers_[0]->begin([&](std::uint64_t) {
    buttons().hold_calls(CKPT_DOUBLE_CALLS_HELD);
    fills = true;
  }));
  ASSERT_TRUE(eventually([&] { return fills.load(); }));
  walker(0).path().give_up("the other one has given up");
  EXPECT_EQ(walker(0).why(), "the other one has given up");
  EXPECT_TRUE(walker(0).is_stuck());
}

TEST_F(CudaPathTest, WhereTheDriverDoesNotAnswerThatAPathEndsNcclEndsAllTheSame) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.end_timeout_ms = 50;
  join(1);
  ASSERT_TRUE(walkers_[0]->begin([](std::uint64_t) {
    buttons().hold_calls(CKPT_DOUBLE_CALLS_HELD);
    throw std::runtime_error("out of luck");
  }));
  EXPECT_EQ(walker(0).why(), "out of luck");
  EXPECT_TRUE(walker(0).is_stuck());
  EXPECT_TRUE(eventually([&] { return nccl_buttons().aborts() == before.aborts + 1; }));
  EXPECT_TRUE(eventually([&] { return nccl_buttons().communicators() == before.communicators; }));
}

TEST_F(CudaPathTest, APathWithoutAChunkUnderWayWaitsForADriverThatDoesNotAnswer) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.exchange.step_timeout_ms = 50;
  join(1);
  join(1);  // another path, which shows that the first one would have given up
  begin_all();
  ASSERT_TRUE(eventually([&] { return walker(0).in_sub_buffers() == buffers; }));
  ASSERT_TRUE(eventually([&] { return walker(1).in_sub_buffers() == buffers; }));
  buttons().hold_calls(CKPT_DOUBLE_CALLS_HELD);
  walker(1).allow(1);
  EXPECT_TRUE(eventually([&] { return !walker(1).path().works(); }));
  EXPECT_TRUE(walker(0).path().works());
}

TEST_F(CudaPathTest, ADriverThatDoesNotAnswerWhileMembersMeetIsTold) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  const Before before;
  settings_.meet_timeout_ms = settings_.end_timeout_ms = 50;
  nccl_buttons().hold_inits(1);
  join(1);
  buttons().hold_calls(CKPT_DOUBLE_CALLS_HELD);
  nccl_buttons().hold_inits(0);
  EXPECT_THAT(walker(0).why(), HasSubstr("did not come back"));
  EXPECT_FALSE(walker(0).is_stuck()) << "nothing was given to it";
  walkers_[0]->leave();  // returns
  buttons().hold_calls(CKPT_DOUBLE_CALLS_RETURN);
  EXPECT_TRUE(all_gone());
  EXPECT_EQ(nccl_buttons().communicators(), before.communicators);
  EXPECT_EQ(nccl_buttons().orphans(), before.orphans);
}

TEST_F(CudaPathOfTwoTest, NeverDisturbsTheCaptureOfAGraph) {
  join_and_begin(2);
  const GpuStream training;
  const auto disturbed = buttons().disturbed_captures();
  ASSERT_CUDA(cuStreamBeginCapture(training, CU_STREAM_CAPTURE_MODE_GLOBAL));
  allow_all(UINT64_MAX);
  EXPECT_TRUE(all_done(1));
  begin_all();
  for (const auto& one : walkers_) one->leave();  // in the middle
  EXPECT_EQ(buttons().disturbed_captures(), disturbed);
  CUgraph graph = nullptr;
  ASSERT_CUDA(cuStreamEndCapture(training, &graph));
}

TEST_F(CudaPathTest, EndsBeforeItsMembersHaveMet) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  walkers_.push_back(std::make_unique<Walker>(NcclComm::new_id(), 2, 0, settings_));
  walkers_[0]->begin();
  walkers_[0]->leave();
  EXPECT_EQ(walker(0).failures(), 0);
}

}  // namespace
}  // namespace ckpt::device
