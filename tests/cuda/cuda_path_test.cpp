// The thread that issues: it carries one exchange after the other, and the first thing that goes wrong ends it.
#include "device/cuda_path.hpp"

#include <gmock/gmock.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>

#include "base/error.hpp"
#include "nccl.hpp"
#include "packed_tensors.hpp"

namespace ckpt::device {
namespace {

using namespace testing_support;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::uint32_t buffers = 3;
constexpr std::size_t leaves = 11;

// One member, with its path and what it was told.
class Walker {
 public:
  Walker(const nccl::UniqueId& id, std::uint32_t members, std::uint32_t member, const CudaPath::Settings& settings)
      : piece_(tensors(10 * member, leaves)), member_(member), members_(members), settings_(settings) {
    for (std::uint32_t i = 0; i < members; ++i) {
      slots_.push_back(std::make_unique<PinnedMemory>(piece_.bytes().size()));
      std::memset(slots_.back()->as<std::byte>(), 0x5A, piece_.bytes().size());
    }
    auto owned = std::make_shared<int>();
    owned_ = owned;
    path_ = std::make_unique<CudaPath>(0, CudaPath::Group{id, members, member}, settings, nullptr,
                                       [this, owned = std::move(owned)](const std::string& why, bool is_stuck) {
                                         const std::lock_guard lock(mutex_);
                                         why_ = why;
                                         is_stuck_ = is_stuck;
                                         ++failures_;
                                       });
  }
  CudaPath& path() const { return *path_; }
  // Of the exchange that was begun last.
  void allow(std::uint64_t steps) const { path_->allow(number_, steps); }
  std::uint64_t number() const { return number_; }
  bool begin() {
    return begin([](std::uint64_t) {});
  }
  bool begin(const std::function<void(std::uint64_t first_byte)>& beside) {
    std::vector<std::byte*> to;
    for (const auto& slot : slots_) to.push_back(slot->as<std::byte>());
    const schedule::ExchangePlan plan({std::vector<std::uint64_t>(members_, piece_.bytes().size()),
                                       settings_.exchange.reserved_bytes, buffers, leaf_bytes});
    const auto fill = [this, beside, pack = piece_.fill()](std::uint64_t first_byte, std::uint64_t size_bytes,
                                                           CUdeviceptr at, CUstream stream) {
      beside(first_byte);
      pack(first_byte, size_bytes, at, stream);
      ++filled_;
    };
    const bool has_begun = path_->begin({number_ + 1, plan, fill, std::move(to), [this] { ++done_; }});
    if (has_begun) ++number_;
    return has_begun;
  }
  bool has(const Walker& other) const {
    const std::byte* const at = slots_[other.member_]->as<std::byte>();
    return std::equal(other.piece_.bytes().begin(), other.piece_.bytes().end(), at);
  }
  int filled() const { return filled_; }
  int done() const { return done_; }
  int failures() const {
    const std::lock_guard lock(mutex_);
    return failures_;
  }
  // What was told, sooner or later.
  std::string why() const {
    EXPECT_TRUE(eventually([&] { return failures() != 0; }));
    const std::lock_guard lock(mutex_);
    return why_;
  }
  bool is_stuck() const {
    const std::lock_guard lock(mutex_);
    return is_stuck_;
  }
  void leave() { path_.reset(); }
  // No thread of the path is left: what it was given goes with the last one.
  bool gone() const { return owned_.expired(); }

 private:
  PackedTensors piece_;
  const std::uint32_t member_, members_;
  const CudaPath::Settings settings_;
  std::vector<std::unique_ptr<PinnedMemory>> slots_;
  std::uint64_t number_ = 0;
  std::atomic<int> filled_{0}, done_{0};
  mutable std::mutex mutex_;
  std::string why_;
  bool is_stuck_ = false;
  int failures_ = 0;
  std::weak_ptr<int> owned_;
  std::unique_ptr<CudaPath> path_;
};

class CudaPathTest : public NcclTest {
 protected:
  CudaPathTest() {
    settings_.exchange = {buffers * 2 * leaf_bytes, 50'000};
    settings_.meet_timeout_ms = settings_.end_timeout_ms = 50'000;
  }
  void TearDown() override {
    reset_nccl();
    if (has_buttons()) buttons().reset();
    for (const auto& walker : walkers_) walker->leave();
    EXPECT_TRUE(all_gone());
    walkers_.clear();
    NcclTest::TearDown();
  }
  bool all_gone() const {
    return eventually(
        [&] { return std::all_of(walkers_.begin(), walkers_.end(), [](const auto& one) { return one->gone(); }); });
  }
  void join(std::uint32_t members) {
    const nccl::UniqueId id = NcclComm::new_id();
    for (std::uint32_t i = 0; i < members; ++i) walkers_.push_back(std::make_unique<Walker>(id, members, i, settings_));
  }
  void begin_all() {
    for (const auto& walker : walkers_) ASSERT_TRUE(walker->begin());
  }
  void allow_all(std::uint64_t steps) {
    for (const auto& walker : walkers_) walker->allow(steps);
  }
  bool all_done(int times) {
    return eventually([&] {
      return std::all_of(walkers_.begin(), walkers_.end(), [&](const auto& one) { return one->done() == times; });
    });
  }
  // All have met and wait to be allowed a step: sub-buffers are filled only then.
  void join_and_begin(std::uint32_t members) {
    join(members);
    begin_all();
    ASSERT_TRUE(eventually([&] {
      return std::all_of(walkers_.begin(), walkers_.end(), [](const auto& one) { return one->filled() != 0; });
    }));
  }
  // The GPU holds a copy, NCCL a step after it, and NCCL says that something is wrong.
  void fail_with_a_copy_under_way() {
    join_and_begin(1);
    const auto sent_before = nccl_buttons().sent_bytes();
    buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
    walker(0).allow(2);
    ASSERT_TRUE(eventually([&] { return nccl_buttons().sent_bytes() == sent_before + 2 * leaf_bytes; }));
    nccl_buttons().hang(0, 1);
    walker(0).allow(3);
    nccl_buttons().fail(0, nccl::system_error);
  }
  const Walker& walker(std::size_t i) const { return *walkers_[i]; }

  CudaPath::Settings settings_;
  std::vector<std::unique_ptr<Walker>> walkers_;
};

// Where NCCL is a real one they would need as many GPUs as members.
class CudaPathOfTwoTest : public CudaPathTest {
 protected:
  void SetUp() override {
    CudaPathTest::SetUp();
    if (!IsSkipped() && !has_nccl_buttons()) GTEST_SKIP() << "needs as many GPUs as members";
  }
};

TEST_F(CudaPathTest, CarriesOneExchangeAfterTheOther) {
  join(1);
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(walkers_[0]->begin());
    walker(0).allow(UINT64_MAX);
    ASSERT_TRUE(all_done(round));
    EXPECT_TRUE(walker(0).has(walker(0)));
  }
  EXPECT_EQ(walker(0).failures(), 0);
}

TEST_F(CudaPathOfTwoTest, CarriesThePiecesOfTwo) {
  join(2);
  for (int round = 1; round <= 3; ++round) {
    begin_all();
    allow_all(UINT64_MAX);
    ASSERT_TRUE(all_done(round));
  }
  EXPECT_TRUE(walker(0).has(walker(1)));
  EXPECT_TRUE(walker(1).has(walker(0)));
  EXPECT_EQ(walker(0).failures() + walker(1).failures(), 0);
}

TEST_F(CudaPathTest, TakesOneExchangeAtATime) {
  join(1);
  ASSERT_TRUE(walkers_[0]->begin());
  EXPECT_FALSE(walkers_[0]->begin());
  walker(0).allow(UINT64_MAX);
  ASSERT_TRUE(all_done(1));
  EXPECT_TRUE(walkers_[0]->begin());
}

TEST_F(CudaPathOfTwoTest, StepsMayBeAllowedOneByOne) {
  join(2);
  begin_all();
  for (std::uint64_t steps = 1; steps <= leaves + 3; ++steps) allow_all(steps);
  ASSERT_TRUE(all_done(1));
  EXPECT_TRUE(walker(1).has(walker(0)));
}

TEST_F(CudaPathTest, WhatIsSaidLateOfAnExchangeReleasesNoneAfterIt) {
  join(1);
  join(1);  // another path, which shows how far this one would have come
  begin_all();
  allow_all(UINT64_MAX);
  ASSERT_TRUE(all_done(1));
  const std::uint64_t first = walker(0).number();
  const int filled = walker(0).filled() + static_cast<int>(buffers);
  begin_all();
  ASSERT_TRUE(eventually([&] { return walker(0).filled() == filled; }));
  walker(0).path().allow(first, UINT64_MAX);
  walker(1).allow(UINT64_MAX);
  ASSERT_TRUE(eventually([&] { return walker(1).done() == 2; }));
  EXPECT_EQ(walker(0).filled(), filled);
  walker(0).allow(UINT64_MAX);
  EXPECT_TRUE(all_done(2));
}

TEST_F(CudaPathTest, WhateverIsThrownIsTold) {
  join(1);
  ASSERT_TRUE(walkers_[0]->begin([](std::uint64_t) { throw std::runtime_error("out of luck"); }));
  EXPECT_EQ(walker(0).why(), "out of luck");
  EXPECT_FALSE(walker(0).path().works());
}

TEST_F(CudaPathTest, AnEnvironmentThatOverridesWhatItAsksNcclForIsRefused) {
  const nccl::UniqueId id = NcclComm::new_id();
  const auto refusal_of = [&](const char* line) -> std::string {
    const char* const environment[] = {"HOME=/", "NCCL_DEBUG=WARN", line, nullptr};
    try {
      CudaPath(0, {id, 1, 0}, settings_, environment, [](const std::string&, bool) {});
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_EQ(refusal_of("NCCL_MAX_CTAS=4"),
            "checkpoints cannot go from GPU to GPU: the environment variable NCCL_MAX_CTAS decides how many blocks of "
            "the GPU a communicator takes, for ckptengine's communicator too; unset it");
  for (const char* const line : {"NCCL_MIN_CTAS=2", "NCCL_MIN_NRINGS=2", "NCCL_MIN_NCHANNELS=2",
                                 "NCCL_MIN_P2P_NCHANNELS=2", "NCCL_COMM_BLOCKING=1", "NCCL_COMM_ID=host:1"})
    EXPECT_THAT(refusal_of(line), HasSubstr(std::string(line, std::strchr(line, '='))));
  for (const char* const line : {"NCCL_MAX_CTAS=", "NCCL_COMM_ID", "NCCL_MAX_CTAS_OF_OTHERS=1", ""})
    EXPECT_EQ(refusal_of(line), "");
}

TEST_F(CudaPathOfTwoTest, AHangIsToldOnceAndNothingIsTriedAgain) {
  settings_.exchange.step_timeout_ms = 50;
  join_and_begin(2);
  nccl_buttons().hang(1, 1);
  allow_all(UINT64_MAX);
  for (const auto& one : walkers_) {
    // The second one may hear first that the other has given up.
    EXPECT_THAT(one->why(), AnyOf(HasSubstr("got no further"), HasSubstr("remote process exited")));
    EXPECT_FALSE(one->is_stuck());
    EXPECT_FALSE(one->path().works());
    EXPECT_FALSE(one->begin());
  }
  nccl_buttons().hang(1, 0);
  walkers_[0]->leave();
  walkers_[1]->leave();
  EXPECT_EQ(walker(0).failures(), 1);
  EXPECT_EQ(walker(0).done(), 0);
}

TEST_F(CudaPathOfTwoTest, AMemberThatDiesIsTold) {
  join_and_begin(2);
  walker(0).allow(UINT64_MAX);
  nccl_buttons().die(1);
  EXPECT_THAT(walker(0).why(), HasSubstr("remote process exited"));
}

TEST_F(CudaPathTest, MembersThatDoNotComeAreWaitedForUntilTheDeadline) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.meet_timeout_ms = 50;
  walkers_.push_back(std::make_unique<Walker>(NcclComm::new_id(), 2, 0, settings_));
  EXPECT_THAT(walker(0).why(), HasSubstr("did not meet"));
  EXPECT_FALSE(walker(0).path().works());
}

TEST_F(CudaPathTest, AMemberThatIsThereAndNeverConnectsIsWaitedForUntilTheDeadline) {
  if (!has_nccl_buttons()) GTEST_SKIP();
  settings_.meet_timeout_ms = 50;
  const nccl::UniqueId id = NcclComm::new_id();
  const NcclComm other(id, 2, 1);
  walkers_.push_back(std::make_unique<Walker>(id, 2, 0, settings_));
  EXPECT_THAT(walker(0).why(), HasSubstr("did not meet"));
}

TEST_F(CudaPathOfTwoTest, AnErrorInTheMiddleIsTold) {
  join_and_begin(2);
  allow_all(2);
  nccl_buttons().fail(0, nccl::system_error);
  allow_all(UINT64_MAX);
  EXPECT_THAT(walker(0).why(), AnyOf(HasSubstr("NCCL"), HasSubstr("nccl")));  // told, or by the next call
}

TEST_F(CudaPathTest, ADeadContextIsToldAsStuck) {
  join(1);
  if (!has_buttons()) GTEST_SKIP();
  ASSERT_TRUE(walkers_[0]->begin());
  walker(0).allow(UINT64_MAX);
  ASSERT_TRUE(all_done(1));
  buttons().hold(CKPT_DOUBLE_KERNEL, 1);
  ASSERT_TRUE(walkers_[0]->begin());
  walker(0).allow(UINT64_MAX);
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(walker(0).why(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  EXPECT_TRUE(walker(0).is_stuck());
  walkers_[0]->leave();
  keep_for_good(std::move(walkers_));
}

TEST_F(CudaPathOfTwoTest, EndsInTheMiddleOfAnExchangeAndTellsNothing) {
  join_and_begin(2);
  const auto groups_before = nccl_buttons().groups();
  walker(0).allow(UINT64_MAX);
  ASSERT_TRUE(eventually([&] { return nccl_buttons().groups() != groups_before; }));
  for (const auto& one : walkers_) one->leave();
  EXPECT_EQ(walker(0).failures() + walker(1).failures(), 0);
  EXPECT_EQ(walker(0).done() + walker(1).done(), 0);
}

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
