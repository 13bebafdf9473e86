// Points of streams: when their words are written, and what is told of them.
#include "device/cuda_timestamps.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "base/error.hpp"
#include "device/cuda_device.hpp"
#include "gpu.hpp"

namespace ckpt::device {
namespace {

using namespace testing_support;
using Word = std::atomic<std::uint32_t>;

// Whole pages of words, and what was told.
class CudaTimestampsTest : public GpuTest {
 protected:
  static constexpr std::size_t words_bytes = 8192;

  std::unique_ptr<CudaTimestamps> timestamps() {
    if (!pages_) {
      void* const data = ::mmap(nullptr, words_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      pages_ = std::shared_ptr<void>(data, [](void* mapped) { ::munmap(mapped, words_bytes); });
    }
    return std::make_unique<CudaTimestamps>(0, range(), pages_, [this](std::uint32_t track, Clock::time_point at) {
      const std::lock_guard lock(mutex_);
      reported_.push_back(track);
      times_.push_back(at);
    });
  }
  Range range() const { return {static_cast<std::byte*>(pages_.get()), words_bytes}; }
  Word* word(std::size_t index) const { return static_cast<Word*>(pages_.get()) + index; }
  std::vector<std::uint32_t> reported() {
    const std::lock_guard lock(mutex_);
    return reported_;
  }
  bool are_reported(std::vector<std::uint32_t> tracks) {
    return eventually([&] { return reported() == tracks; });
  }
  // Work that is held on a stream until hold(0).
  void hold(bool held) { buttons().hold(CKPT_DOUBLE_TO_DEVICE, held ? 1 : 0); }
  void enqueue_held(CUstream stream) {
    const std::byte byte{1};
    EXPECT_CUDA(cuMemcpyHtoDAsync(memory_->pointer(), &byte, 1, stream));
  }
  void SetUp() override {
    GpuTest::SetUp();
    if (context_ != nullptr) memory_ = std::make_unique<GpuBytes>(1);
  }
  void TearDown() override {
    if (buttons().reset != nullptr) buttons().reset();
    memory_.reset();
    GpuTest::TearDown();
  }

  std::shared_ptr<void> pages_;
  std::unique_ptr<GpuBytes> memory_;
  std::mutex mutex_;
  std::vector<std::uint32_t> reported_;
  std::vector<Clock::time_point> times_;
};

TEST_F(CudaTimestampsTest, WritesTheWordAndReportsTheTimeWhenTheGpuArrives) {
  if (!has_buttons()) GTEST_SKIP();
  const auto timestamps = this->timestamps();
  const GpuStream stream;
  hold(true);
  ASSERT_TRUE(timestamps->add(stream, {3, word(2000), 5}));
  enqueue_held(stream);
  ASSERT_TRUE(timestamps->add(stream, {4, word(7), 9}));
  ASSERT_TRUE(are_reported({3}));
  EXPECT_TRUE(eventually([&] { return *word(2000) == 5; }));  // the time is that before the write
  EXPECT_EQ(*word(7), 0u);
  EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  const auto let_go_at = Clock::now();
  hold(false);
  ASSERT_TRUE(are_reported({3, 4}));
  EXPECT_TRUE(eventually([&] { return *word(7) == 9; }));
  // The anchor of a machine that is busy may be far off; units and clocks are those of the host.
  const auto tolerance = std::chrono::seconds(10);
  EXPECT_LT(times_[0], times_[1]);
  EXPECT_GT(times_[1], let_go_at - tolerance);
  EXPECT_LT(times_[1], Clock::now() + tolerance);
}

TEST_F(CudaTimestampsTest, ReportsPointsInTheOrderReached) {
  if (!has_buttons()) GTEST_SKIP();
  const auto timestamps = this->timestamps();
  const GpuStream one, two;
  hold(true);
  enqueue_held(one);
  ASSERT_TRUE(timestamps->add(one, {0, nullptr, 0}));
  ASSERT_TRUE(timestamps->add(two, {9, nullptr, 0}));
  EXPECT_TRUE(are_reported({9}));
  hold(false);
  EXPECT_TRUE(are_reported({9, 0}));
}

TEST_F(CudaTimestampsTest, ReportsReachedPointsWhenItEnds) {
  const GpuStream stream;
  auto timestamps = this->timestamps();
  for (std::uint32_t i = 0; i < 100; ++i) ASSERT_TRUE(timestamps->add(stream, {i % 5, word(i), i}));
  ASSERT_CUDA(cuStreamSynchronize(stream));
  timestamps.reset();
  EXPECT_EQ(reported_.size(), 100u);
  for (std::uint32_t track = 0; track < 5; ++track)
    EXPECT_EQ(std::count(reported_.begin(), reported_.end(), track), 20);
  for (std::uint32_t i = 0; i < 100; ++i) EXPECT_EQ(*word(i), i);
}

TEST_F(CudaTimestampsTest, DoesNotWaitForAHungGpuAndKeepsTheWordsMapped) {
  if (!has_buttons()) GTEST_SKIP();
  const auto before = buttons().registrations();
  const GpuStream stream;
  auto timestamps = this->timestamps();
  hold(true);
  enqueue_held(stream);
  ASSERT_TRUE(timestamps->add(stream, {0, word(0), 1}));
  timestamps.reset();
  EXPECT_EQ(buttons().registrations(), before + 1);
  const std::weak_ptr<void> watched = pages_;
  Word* const written = word(0);
  pages_.reset();
  ASSERT_FALSE(watched.expired());
  hold(false);
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(*written, 1u);
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);  // takes along what was left behind
}

TEST_F(CudaTimestampsTest, UnregistersEverythingOnceAllPointsAreReached) {
  if (!has_buttons()) GTEST_SKIP();
  const auto before = buttons().registrations();
  const GpuStream stream;
  {
    const auto timestamps = this->timestamps();
    ASSERT_TRUE(timestamps->add(stream, {0, word(0), 1}));
    ASSERT_CUDA(cuStreamSynchronize(stream));
  }
  EXPECT_EQ(buttons().registrations(), before);
}

TEST_F(CudaTimestampsTest, IgnoresGraphCaptures) {
  const auto timestamps = this->timestamps();
  const GpuStream captured, other;
  ASSERT_CUDA(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_FALSE(timestamps->add(captured, {0, word(0), 1}));
  EXPECT_TRUE(timestamps->add(other, {1, word(1), 1}));
  EXPECT_TRUE(are_reported({1}));
  CUgraph graph = nullptr;
  EXPECT_CUDA(cuStreamEndCapture(captured, &graph));
  EXPECT_EQ(*word(0), 0u);
  if (has_buttons()) {
    EXPECT_EQ(buttons().disturbed_captures(), 0u);
  }
}

TEST_F(CudaTimestampsTest, AcceptsAndReportsNothingInADeadContext) {
  if (!has_buttons()) GTEST_SKIP();
  const auto timestamps = this->timestamps();
  const GpuStream stream;
  hold(true);
  enqueue_held(stream);
  ASSERT_TRUE(timestamps->add(stream, {0, word(0), 1}));
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(timestamps->add(stream, {0, word(0), 2}));
  EXPECT_TRUE(reported().empty());
}

TEST_F(CudaTimestampsTest, IsUnavailableIfTheGpuCannotWriteWords) {
  if (!has_buttons()) GTEST_SKIP();
  const auto before = buttons().registrations();
  timestamps().reset();
  buttons().refuse_stream_writes(CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THROW(timestamps(), Failure);
  EXPECT_EQ(buttons().registrations(), before);
  CudaDevice device(0, 1 << 20);
  EXPECT_EQ(device.timestamps(range(), pages_, [](std::uint32_t, Clock::time_point) {}), nullptr);
  buttons().refuse_stream_writes(0);
  EXPECT_NE(device.timestamps(range(), pages_, [](std::uint32_t, Clock::time_point) {}), nullptr);
}

}  // namespace
}  // namespace ckpt::device
