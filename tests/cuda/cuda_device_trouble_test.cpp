// The device for tensors on a GPU, by itself: contexts that die, copies that are late, and memory that is pinned or
// not.
#include "cuda_device_fixture.hpp"
#include "device/cuda_copy.hpp"

namespace ckpt::device {
namespace {

using testing::HasSubstr;

TEST_F(CudaDeviceTest, ContextErrorBeforeReleaseEndsTheCapture) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device();
  start(*device, nullptr);
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(release(*device, {nullptr}));
  device->cancel();
  EXPECT_TRUE(device->broken());
  EXPECT_THAT(device->failure(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_F(CudaDeviceTest, ContextErrorAfterReleaseEndsTheCapture) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  start(*device, nullptr);
  ASSERT_TRUE(release(*device, {nullptr}));
  buttons().kill_context_at(CKPT_DOUBLE_TO_HOST, 5, CUDA_ERROR_ILLEGAL_ADDRESS);
  buttons().let(CKPT_DOUBLE_TO_HOST, 5);
  EXPECT_EQ(outcome(), -1);
  EXPECT_TRUE(device->broken());
  EXPECT_THAT(device->failure(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_F(CudaDeviceTest, TensorFreedBeforeItsCaptureKillsTheContext) {
  if (!has_buttons()) GTEST_SKIP() << "a real GPU may find other bytes there";
  const auto device = this->device();
  auto freed = std::make_unique<GpuTensors>(std::vector<std::size_t>{1000, 70'000});
  const Plan plan = freed->plan();
  const GpuBytes behind(1000);  // so that no allocation of the device fits where they were
  freed.reset();
  device->start({}, {&plan, slot_->packed()}, nullptr);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(release(*device, {nullptr}));
  device->cancel();
  EXPECT_TRUE(device->broken());
}

TEST_F(CudaDeviceTest, GivesUpAGpuThatNeverEndsACopy) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device(small_staging, {.drain_timeout_ms = 20});
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  start(*device, nullptr);
  ASSERT_TRUE(device->release({}, 10, [this](bool whole) { outcome_ = whole ? 1 : -1; }));
  EXPECT_EQ(outcome(), -1);
  EXPECT_TRUE(device->broken());
  EXPECT_THAT(device->failure(), HasSubstr("check whether the GPU hangs"));
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);  // takes along what the device left behind
  EXPECT_TRUE(eventually([&] { return device->failure().find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos; }));
}

TEST_F(CudaDeviceTest, CopyDeadlineBeginsWhenTheGpuReachesTheCopy) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device();
  const GpuStream stream;
  const GpuBytes training(1000);
  buttons().hold(CKPT_DOUBLE_TO_DEVICE, 1);
  const std::byte byte{1};
  EXPECT_CUDA(cuMemcpyHtoDAsync(training.pointer(), &byte, 1, stream));  // the iteration before
  start(*device, stream);
  ASSERT_TRUE(device->release({}, 0, [this](bool whole) { outcome_ = whole ? 1 : -1; }));
  const auto looks = buttons().event_queries();
  EXPECT_TRUE(eventually([&] { return buttons().event_queries() > looks + 20; }));
  EXPECT_EQ(outcome_, 0);
  EXPECT_FALSE(device->broken());
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  buttons().hold(CKPT_DOUBLE_TO_DEVICE, 0);
  EXPECT_EQ(outcome(), -1);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  EXPECT_TRUE(eventually([&] { return !device->broken(); }));
}

TEST_F(CudaDeviceTest, ContinuesOnceAnAbandonedCopyHasEnded) {
  if (!has_buttons()) GTEST_SKIP();
  const auto before = buttons().registrations();
  {
    const auto device = this->device(small_staging, {.drain_timeout_ms = 20});
    for (const bool is_released : {true, false}) {
      overlapped_->fill(1);
      buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
      start(*device, nullptr);
      if (is_released) {
        ASSERT_TRUE(device->release({}, 10, [this](bool whole) { outcome_ = whole ? 1 : -1; }));
        EXPECT_EQ(outcome(), -1);
      } else {
        device->cancel();
      }
      EXPECT_TRUE(device->broken());
      start(*device, nullptr);  // by a caller that does not ask
      EXPECT_FALSE(release(*device, {}));
      device->cancel();
      buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
      EXPECT_TRUE(eventually([&] { return !device->broken(); }));
      EXPECT_EQ(device->failure(), "");
      const auto bytes = overlapped_->fill(2);
      start(*device, nullptr);
      ASSERT_TRUE(release(*device, {nullptr}));
      ASSERT_EQ(outcome(), 1);
      slot_->expect_holds(bytes);
    }
  }
  EXPECT_EQ(buttons().registrations(), before);
}

// The pages are never touched except where the piece is.
TEST_F(CudaDeviceTest, SplitsCopiesAtRegistrationsOfALargeSlot) {
  constexpr std::size_t size_bytes = 2 * pin_max_bytes;
  const std::size_t length_bytes = overlapped_plan_.length_bytes();
  void* const memory =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Owner mapping(memory, [](void* mapped) { ::munmap(mapped, size_bytes); });
  auto* const first = static_cast<std::byte*>(memory);
  const std::size_t to_cut = pin_max_bytes - reinterpret_cast<std::uintptr_t>(memory) % pin_max_bytes;
  const auto device = this->device();
  attach(*device, {{first, size_bytes}, private_slot_->range()}, mapping);
  std::vector<std::uint64_t> digests(overlapped_plan_.leaves());
  for (const std::size_t boundary : {to_cut, pin_max_bytes}) {
    const auto bytes = overlapped_->fill(boundary % 100);
    std::byte* const data = first + std::min(boundary, size_bytes - length_bytes) - length_bytes / 128 * 64;
    const Device::Copy copy{&overlapped_plan_, {data, digests.data()}};
    device->start({&copy, 1}, {&synchronous_plan_, private_slot_->packed()}, nullptr);
    ASSERT_TRUE(release(*device, {nullptr})) << device->failure();
    ASSERT_EQ(outcome(), 1);
    EXPECT_EQ(std::memcmp(data, bytes.data(), bytes.size()), 0);
    overlapped_->fill(77);
    EXPECT_FALSE(device->load(overlapped_plan_, {data, digests.data()}, nullptr));
    EXPECT_EQ(overlapped_->read(), bytes);
  }
  const std::weak_ptr<const void> mapped = mapping;
  mapping.reset();
  attach(*device, {});
  EXPECT_TRUE(eventually([&] { return mapped.expired(); }));
}

TEST_F(CudaDeviceTest, ReleaseBeyondTheDriversQueueBlocksNoOtherCall) {
  if (!has_buttons()) GTEST_SKIP();
  const GpuTensors large({400 * leaf});
  const Plan plan = large.plan();
  const Slot slot(plan);
  const auto device = this->device(4 * leaf);
  attach(*device, {slot.range(), private_slot_->range()});
  const auto bytes = large.fill(3);
  const auto queue_full = buttons().queue_full();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  const Device::Copy copy{&plan, slot.packed()};
  device->start({&copy, 1}, {&synchronous_plan_, private_slot_->packed()}, nullptr);
  std::atomic<bool> is_called{false}, is_released{false};
  std::thread training([&] {
    is_called = true;
    EXPECT_TRUE(release(*device, {nullptr}));
    is_released = true;
  });
  EXPECT_TRUE(eventually([&] { return is_called.load(); }));
  const auto looks = buttons().event_queries();
  while (buttons().event_queries() < looks + 1000 && buttons().queue_full() == queue_full)
    EXPECT_FALSE(device->broken());
  EXPECT_EQ(buttons().queue_full(), queue_full) << "the driver blocks, perhaps with a lock that training needs";
  EXPECT_FALSE(is_released);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  training.join();
  ASSERT_EQ(outcome(), 1);
  slot.expect_holds(bytes);
}

TEST_F(CudaDeviceTest, StagingForALargeStateFreesTheUpdateBeforeCopyingOut) {
  if (!has_buttons()) GTEST_SKIP();
  const GpuTensors large({400 * leaf});
  const Plan plan = large.plan();
  const Slot slot(plan);
  const auto device = this->device(410 * leaf, {.chunk_max_bytes = leaf});
  attach(*device, {slot.range(), private_slot_->range()});
  const auto bytes = large.fill(3);
  const auto queue_full = buttons().queue_full();
  const GpuStream stream;
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  const Device::Copy copy{&plan, slot.packed()};
  device->start({&copy, 1}, {&synchronous_plan_, private_slot_->packed()}, stream);
  ASSERT_TRUE(release(*device, {stream}));
  large.update(stream, 9);
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(outcome_, 0);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  ASSERT_EQ(outcome(), 1);
  slot.expect_holds(bytes);
  EXPECT_EQ(buttons().queue_full(), queue_full);
}

TEST_F(CudaDeviceTest, ReleaseOfALargeStateFailsAtItsDeadlineIfTheGpuHangs) {
  if (!has_buttons()) GTEST_SKIP();
  const GpuTensors large({400 * leaf});
  const Plan plan = large.plan();
  const Slot slot(plan);
  const auto device = this->device(4 * leaf, {.drain_timeout_ms = 20});
  attach(*device, {slot.range(), private_slot_->range()});
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  const Device::Copy copy{&plan, slot.packed()};
  device->start({&copy, 1}, {&synchronous_plan_, private_slot_->packed()}, nullptr);
  EXPECT_FALSE(device->release({}, 20, [this](bool whole) { outcome_ = whole ? 1 : -1; }));
  EXPECT_THAT(device->failure(), HasSubstr("check whether the GPU hangs"));
  device->cancel();
  EXPECT_TRUE(device->broken());
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  EXPECT_TRUE(eventually([&] { return !device->broken(); }));
  const auto bytes = large.fill(4);
  device->start({&copy, 1}, {&synchronous_plan_, private_slot_->packed()}, nullptr);
  ASSERT_TRUE(release(*device, {nullptr})) << device->failure();
  ASSERT_EQ(outcome(), 1);
  slot.expect_holds(bytes);
}

TEST_F(CudaDeviceTest, HungLoadFailsAtItsDeadlineAndCapturesContinueLater) {
  if (!has_buttons()) GTEST_SKIP();
  CudaDevice device(0, small_staging, {.drain_timeout_ms = 20, .load_timeout_ms = 20});
  attach(device, {slot_->range(), private_slot_->range()});
  const std::vector<std::byte> pageable(overlapped_plan_.length_bytes());
  const std::vector<std::uint64_t> digests(overlapped_plan_.leaves());
  buttons().hold(CKPT_DOUBLE_TO_DEVICE, 1);
  EXPECT_THROW(device.load(overlapped_plan_, {pageable.data(), digests.data()}, nullptr), Failure);
  EXPECT_TRUE(device.broken());
  buttons().hold(CKPT_DOUBLE_TO_DEVICE, 0);
  EXPECT_TRUE(eventually([&] { return !device.broken(); }));
  const auto bytes = overlapped_->fill(2);
  start(device, nullptr);
  ASSERT_TRUE(release(device, {nullptr})) << device.failure();
  ASSERT_EQ(outcome(), 1);
  slot_->expect_holds(bytes);
}

TEST_F(CudaDeviceTest, VerificationFailsAtItsDeadlineIfTheGpuHangs) {
  if (!has_buttons()) GTEST_SKIP();
  CudaDevice device(0, small_staging, {.drain_timeout_ms = 20, .load_timeout_ms = 1000});
  const std::vector<std::uint64_t> digests(overlapped_plan_.leaves());
  buttons().hold(CKPT_DOUBLE_KERNEL, 1);
  EXPECT_THROW(device.verify(overlapped_plan_, digests.data(), nullptr), Failure);
  EXPECT_TRUE(device.broken());
  EXPECT_THROW(device.verify(overlapped_plan_, digests.data(), nullptr), Failure);
  buttons().hold(CKPT_DOUBLE_KERNEL, 0);
  EXPECT_TRUE(eventually([&] { return !device.broken(); }));
  EXPECT_NE(device.verify(overlapped_plan_, digests.data(), nullptr), std::nullopt);
}

TEST_F(CudaDeviceTest, ReportsASynchronousPieceThatIsLate) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  device->start({}, {&synchronous_plan_, private_slot_->packed()}, nullptr);
  EXPECT_FALSE(device->wait_for_synchronous(10));
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  EXPECT_TRUE(device->wait_for_synchronous(50'000));
  device->cancel();
  EXPECT_FALSE(device->wait_for_synchronous(0)) << "nothing is captured";
}

}  // namespace
}  // namespace ckpt::device
