// The device for tensors on a GPU, by itself: contexts that die, copies that are late, and memory that is pinned or
// not.
#include "cuda_device_fixture.hpp"
#include "device/cuda_copy.hpp"

namespace ckpt::device {
namespace {

using testing::HasSubstr;

TEST_F(CudaDeviceTest, AnErrorThatKillsTheContextBeforeReleaseEndsTheCapture) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device();
  start(*device, nullptr);
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_FALSE(release(*device, {nullptr}));
  device->cancel();
  EXPECT_TRUE(device->broken());
  EXPECT_THAT(device->failure(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_F(CudaDeviceTest, AnErrorThatKillsTheContextAfterReleaseEndsTheCapture) {
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

TEST_F(CudaDeviceTest, ATensorThatWasFreedBeforeItsCaptureKillsTheContext) {
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

TEST_F(CudaDeviceTest, AGpuThatNeverEndsACopyIsGivenUp) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device(small_staging, 20);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  start(*device, nullptr);
  ASSERT_TRUE(device->release({}, 10, [this](bool whole) { outcome_ = whole ? 1 : -1; }));
  EXPECT_EQ(outcome(), -1);
  EXPECT_TRUE(device->broken());
  EXPECT_THAT(device->failure(), HasSubstr("is it hung?"));
  buttons().kill_context(CUDA_ERROR_ILLEGAL_ADDRESS);  // takes along what the device left behind
  EXPECT_TRUE(eventually([&] { return device->failure().find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos; }));
}

TEST_F(CudaDeviceTest, TheTimeOfACopyBeginsWhenTheGpuGetsToIt) {
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

TEST_F(CudaDeviceTest, GoesOnOnceACopyThatWasGivenUpHasLanded) {
  if (!has_buttons()) GTEST_SKIP();
  const auto before = buttons().registrations();
  {
    const auto device = this->device(small_staging, 20);
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

TEST_F(CudaDeviceTest, ALateCopyKeepsItsRangesPinnedUntilItHasLanded) {
  if (!has_buttons()) GTEST_SKIP();
  const Slot other(overlapped_plan_);
  const auto device = this->device(small_staging, 20);
  const auto pinned = buttons().registrations();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  start(*device, nullptr);
  device->cancel();
  attach(*device, {other.range()});
  EXPECT_EQ(buttons().registrations(), pinned + 1);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  EXPECT_TRUE(eventually([&] { return !device->broken(); }));
  EXPECT_EQ(buttons().registrations(), pinned - 1);
}

TEST_F(CudaDeviceTest, PinsItsRangesAndLetsThemGo) {
  if (!has_buttons()) GTEST_SKIP();
  const auto before = buttons().registrations();
  {
    CudaDevice device(0, small_staging);
    const auto own = buttons().registrations();
    attach(device, {slot_->range(), private_slot_->range()});
    EXPECT_EQ(buttons().registrations(), own + 2);
    attach(device, {slot_->range()});
    EXPECT_EQ(buttons().registrations(), own + 1);
    attach(device, {});
    EXPECT_EQ(buttons().registrations(), own);
    attach(device, {slot_->range()});
  }
  EXPECT_EQ(buttons().registrations(), before);
}

// The pages are never touched except where the piece is.
TEST_F(CudaDeviceTest, NoCopyTouchesTwoRegistrationsOfASlotThatIsTooLargeForOne) {
  const std::size_t size_bytes = 2 * pin_max_bytes, length_bytes = overlapped_plan_.length_bytes();
  void* const memory =
      ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const first = static_cast<std::byte*>(memory);
  const std::size_t to_cut = pin_max_bytes - reinterpret_cast<std::uintptr_t>(memory) % pin_max_bytes;
  const auto device = this->device();
  attach(*device, {{first, size_bytes}, private_slot_->range()});
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
  attach(*device, {});
  ::munmap(memory, size_bytes);
}

TEST_F(CudaDeviceTest, ALoadThatTheGpuDoesNotEndFailsAtItsDeadlineAndCapturesGoOnLater) {
  if (!has_buttons()) GTEST_SKIP();
  CudaDevice device(0, small_staging, 20, 20);
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

TEST_F(CudaDeviceTest, RangesThatWerePreparedArePinnedOnce) {
  if (!has_buttons()) GTEST_SKIP();
  CudaDevice device(0, small_staging);
  const auto before = buttons().registrations();
  std::thread([&] { device.prepare({slot_->range()}, nullptr); }).join();
  EXPECT_EQ(buttons().registrations(), before + 1);
  attach(device, {slot_->range(), private_slot_->range()});
  EXPECT_EQ(buttons().registrations(), before + 2);
  EXPECT_FALSE(device.broken());
}

TEST_F(CudaDeviceTest, TheCallerPinsNothing) {
  if (!has_buttons()) GTEST_SKIP();
  CudaDevice device(0, small_staging);
  const auto before = buttons().registered_here();
  attach(device, {slot_->range()});
  device.attach_also(private_slot_->range());
  EXPECT_TRUE(device.wait_until_attached(Deadline::in_ms(50'000)));
  EXPECT_EQ(buttons().registered_here(), before);
}

TEST_F(CudaDeviceTest, SaysWhatTheDriverSaidWhenItRefusedToPin) {
  if (!has_buttons()) GTEST_SKIP();
  CudaDevice device(0, small_staging);
  buttons().refuse_registration(CUDA_ERROR_NOT_PERMITTED);
  attach(device, {slot_->range()});
  EXPECT_TRUE(device.broken());
  EXPECT_THAT(device.failure(), HasSubstr("CUDA_ERROR_NOT_PERMITTED"));
  buttons().refuse_registration(0);
  attach(device, {slot_->range()});
  EXPECT_FALSE(device.broken());
}

}  // namespace
}  // namespace ckpt::device
