// The device for tensors on a GPU, by itself: what is captured, and when tensors may change.
#include "base/error.hpp"
#include "cuda_device_fixture.hpp"
#include "device/auto_device.hpp"

namespace ckpt::device {
namespace {

using testing::HasSubstr;

TEST_F(CudaDeviceTest, CapturesByteForByteWithTheDigestsOfTheCpu) {
  const auto device = this->device();
  const GpuStream stream;
  for (std::uint64_t round = 0; round < 3; ++round) {
    const auto bytes = overlapped_->fill(round), synchronous = synchronous_->fill(round + 50);
    start(*device, stream);
    ASSERT_TRUE(release(*device, {stream}));
    ASSERT_EQ(outcome(), 1);
    slot_->expect_holds(bytes);
    private_slot_->expect_holds(synchronous);
  }
}

TEST_F(CudaDeviceTest, SlicesHoldTheBytesOfTheWhole) {
  const auto device = this->device();
  const auto bytes = overlapped_->fill(1);
  const std::size_t cut = 5 * leaf;
  const Plan slices[] = {overlapped_plan_.slice(0, cut),
                         overlapped_plan_.slice(cut, overlapped_plan_.length_bytes() - cut)};
  const Device::Copy copies[] = {{&slices[0], slot_->packed()},
                                 {&slices[1], {slot_->data() + cut, slot_->digests() + 5}}};
  device->start(copies, {&synchronous_plan_, private_slot_->packed()}, nullptr);
  ASSERT_TRUE(release(*device, {}));
  ASSERT_EQ(outcome(), 1);
  slot_->expect_holds(bytes);
}

TEST_F(CudaDeviceTest, CapturesAfterEarlierWorkOfTheCallersStream) {
  const auto device = this->device();
  overlapped_->fill(1);
  const GpuStream stream;
  if (has_buttons()) buttons().hold(CKPT_DOUBLE_TO_DEVICE, 1);
  const std::vector<std::byte> late(1'500'001, std::byte{7});
  const auto length = overlapped_plan_.length_bytes();
  overlapped_->update(stream, 1);
  EXPECT_CUDA(cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(overlapped_plan_.targets()[0].data), late.data(),
                                late.size(), stream));
  start(*device, stream);
  ASSERT_TRUE(release(*device, {stream}));
  if (has_buttons()) buttons().hold(CKPT_DOUBLE_TO_DEVICE, 0);
  ASSERT_EQ(outcome(), 1);
  std::vector<std::byte> expected(length, std::byte{1});
  std::fill_n(expected.begin(), late.size(), std::byte{7});
  slot_->expect_holds(expected);
}

TEST_F(CudaDeviceTest, UpdateRightAfterReleaseDoesNotTearTheCapture) {
  const auto device = this->device();
  const GpuStream one, two;
  for (unsigned char round = 0; round < 10; ++round) {
    const auto bytes = overlapped_->fill(round), synchronous = synchronous_->fill(round + 50u);
    if (has_buttons()) buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
    start(*device, one);
    synchronous_->update(one, round);
    ASSERT_TRUE(release(*device, {one, two}));  // the host comes by although nothing was copied yet
    if (has_buttons()) {
      EXPECT_EQ(outcome_, 0);
    }
    overlapped_->update(round % 2 == 0 ? one : two, round);
    if (has_buttons()) buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
    ASSERT_EQ(outcome(), 1);
    slot_->expect_holds(bytes);
    private_slot_->expect_holds(synchronous);
    ASSERT_CUDA(cuCtxSynchronize());
    EXPECT_EQ(overlapped_->read(), std::vector(bytes.size(), static_cast<std::byte>(round)));
  }
}

TEST_F(CudaDeviceTest, SupportsDefaultStreams) {
  const auto device = this->device();
  for (const CUstream stream : {CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    const auto bytes = overlapped_->fill(3);
    start(*device, stream);
    ASSERT_TRUE(release(*device, {stream}));
    overlapped_->update(stream, 9);
    ASSERT_EQ(outcome(), 1);
    slot_->expect_holds(bytes);
    ASSERT_CUDA(cuCtxSynchronize());
  }
}

TEST_F(CudaDeviceTest, DoesNotDelayUnnamedStreams) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device();
  const GpuStream named, other;
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  start(*device, named);
  ASSERT_TRUE(release(*device, {named}));
  ASSERT_CUDA(cuStreamSynchronize(other));
  EXPECT_EQ(cuStreamQuery(named), CUDA_ERROR_NOT_READY);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  ASSERT_EQ(outcome(), 1);
}

TEST_F(CudaDeviceTest, FullSizeStagingFreesTheUpdateBeforeCopyingOut) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device(64 * leaf);
  const GpuStream stream;
  const auto bytes = overlapped_->fill(4);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  start(*device, stream);
  ASSERT_TRUE(release(*device, {stream}));
  overlapped_->update(stream, 9);
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(outcome_, 0);
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  ASSERT_EQ(outcome(), 1);
  slot_->expect_holds(bytes);
}

TEST_F(CudaDeviceTest, EnqueuesNoMoreChunksThanSubBuffers) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  const auto before = buttons().done(CKPT_DOUBLE_KERNEL);
  start(*device, nullptr);
  // What is captured synchronously, and four sub-buffers.
  EXPECT_TRUE(eventually([&] { return buttons().done(CKPT_DOUBLE_KERNEL) == before + 5; }));
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  ASSERT_TRUE(release(*device, {}));
  ASSERT_EQ(outcome(), 1);
}

TEST_F(CudaDeviceTest, UsesLessStagingIfLessMemoryIsFree) {
  if (!has_buttons()) GTEST_SKIP();
  buttons().free_bytes(9 * leaf);
  const auto device = this->device(64 * leaf);
  EXPECT_EQ(device->staging_bytes(), 8 * leaf);
  buttons().reset();
  const auto bytes = overlapped_->fill(5);
  start(*device, nullptr);
  ASSERT_TRUE(release(*device, {}));
  ASSERT_EQ(outcome(), 1);
  slot_->expect_holds(bytes);
}

TEST_F(CudaDeviceTest, SaysThatTheGpuHasNoMemoryLeft) {
  if (!has_buttons()) GTEST_SKIP();
  buttons().free_bytes(leaf);
  try {
    device();
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status(), CKPT_ERR_NO_SPACE);
    EXPECT_THAT(failure.what(), HasSubstr("has no memory left"));
  }
}

TEST_F(CudaDeviceTest, CancelledCopyWritesNothingLater) {
  const auto device = this->device();
  const GpuStream stream;
  for (int round = 0; round < 20; ++round) {
    overlapped_->fill(6);
    start(*device, stream);
    if (round % 2 == 0) {
      ASSERT_TRUE(release(*device, {stream}));
    }
    device->cancel();
    const std::vector<std::byte> zeros(overlapped_plan_.length_bytes());
    std::memset(slot_->data(), 0, zeros.size());
    ASSERT_CUDA(cuCtxSynchronize());
    ASSERT_EQ(std::memcmp(slot_->data(), zeros.data(), zeros.size()), 0);
  }
  const auto bytes = overlapped_->fill(7);
  start(*device, stream);
  ASSERT_TRUE(release(*device, {stream}));
  ASSERT_EQ(outcome(), 1);
  slot_->expect_holds(bytes);
}

TEST_F(CudaDeviceTest, CapturesHostTensorsBeforeStartReturns) {
  const auto device = this->device();
  const auto on_gpu = bytes_of(100'000, 1);
  auto on_host = bytes_of(33'333, 2);
  const auto expected_host = on_host;
  const GpuBytes gpu(on_gpu);
  const Plan plan(
      {{static_cast<std::byte*>(gpu.data()), on_gpu.size(), CKPT_DEVICE}, {on_host.data(), on_host.size()}});
  const Slot slot(plan);
  attach(*device, {slot.range()});
  const Plan nothing({});
  device->start({}, {&plan, slot.packed()}, nullptr);
  std::fill(on_host.begin(), on_host.end(), std::byte{0});
  ASSERT_TRUE(release(*device, {}));
  ASSERT_EQ(outcome(), 1);
  auto expected = on_gpu;
  expected.insert(expected.end(), expected_host.begin(), expected_host.end());
  slot.expect_holds(expected);
  EXPECT_FALSE(device->load(plan, slot.const_packed(), nullptr));
  EXPECT_EQ(on_host, expected_host);
}

TEST_F(CudaDeviceTest, LoadsACaptureAfterPendingWritesOfTheStream) {
  const auto device = this->device();
  const GpuStream stream;
  const auto bytes = overlapped_->fill(8);
  start(*device, stream);
  ASSERT_TRUE(release(*device, {stream}));
  ASSERT_EQ(outcome(), 1);
  for (const bool pinned : {true, false}) {
    if (!pinned) attach(*device, {});
    overlapped_->update(stream, 0);
    EXPECT_FALSE(device->load(overlapped_plan_, slot_->const_packed(), stream));
    EXPECT_EQ(overlapped_->read(), bytes);
  }
}

TEST_F(CudaDeviceTest, LoadsUnpinnableMemoryThroughPinnedBuffers) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device();
  const auto bytes = overlapped_->fill(8);
  start(*device, nullptr);
  ASSERT_TRUE(release(*device, {}));
  ASSERT_EQ(outcome(), 1);
  attach(*device, {});
  overlapped_->fill(9);
  const auto pageable = buttons().pageable_copies(), registered = buttons().registered_here();
  const auto registrations = buttons().registrations();
  buttons().refuse_registration(CUDA_ERROR_NOT_PERMITTED);
  EXPECT_FALSE(device->load(overlapped_plan_, slot_->const_packed(), nullptr));
  EXPECT_EQ(buttons().pageable_copies(), pageable) << "which are several times slower";
  EXPECT_EQ(buttons().registered_here(), registered) << "which takes longer than the copy";
  EXPECT_EQ(buttons().registrations(), registrations);
  EXPECT_EQ(overlapped_->read(), bytes);
}

TEST_F(CudaDeviceTest, NamesALeafThatDoesNotMatch) {
  const auto device = this->device();
  overlapped_->fill(9);
  start(*device, nullptr);
  ASSERT_TRUE(release(*device, {}));
  ASSERT_EQ(outcome(), 1);
  slot_->data()[11 * leaf + 17] ^= std::byte{1};
  EXPECT_EQ(device->load(overlapped_plan_, slot_->const_packed(), nullptr), std::optional<std::size_t>(11));
}

TEST_F(CudaDeviceTest, VerifiesTensorsInPlaceAfterPendingWrites) {
  const auto device = this->device();
  const GpuStream stream;
  const auto bytes = overlapped_->fill(9);
  start(*device, stream);
  ASSERT_TRUE(release(*device, {stream}));
  ASSERT_EQ(outcome(), 1);
  EXPECT_EQ(device->verify(overlapped_plan_, slot_->digests(), stream), std::nullopt);
  EXPECT_EQ(overlapped_->read(), bytes);
  slot_->digests()[11] ^= 1;
  EXPECT_EQ(device->verify(overlapped_plan_, slot_->digests(), stream), std::optional<std::size_t>(11));
  slot_->digests()[11] ^= 1;
  overlapped_->update(stream, 3);
  EXPECT_EQ(device->verify(overlapped_plan_, slot_->digests(), stream), std::optional<std::size_t>(0));
}

TEST_F(CudaDeviceTest, VerifiesAnyRangeOfTheTensors) {
  const auto device = this->device();
  const auto bytes = overlapped_->fill(10);
  for (const auto& [first, size] : {std::pair<std::size_t, std::size_t>(0, 1), {1'499'999, 17}, {65'535, 65'536}}) {
    const Plan range = overlapped_plan_.slice(first, size);
    std::uint64_t digest = kernels::leaf_digest(bytes.data() + first, size);
    EXPECT_EQ(device->verify(range, &digest, nullptr), std::nullopt) << first;
    digest ^= 1;
    EXPECT_EQ(device->verify(range, &digest, nullptr), std::optional<std::size_t>(0)) << first;
  }
}

TEST_F(CudaDeviceTest, CapturesTensorsAtRestWithoutAStreamOrAllocation) {
  const auto device = this->device();
  const auto bytes = overlapped_->fill(11);
  const Device::Copy copy{&overlapped_plan_, slot_->packed()};
  device->reserve_late({&copy, 1});
  const auto allocations = has_buttons() ? buttons().allocations() : 0;
  device->start_late({&copy, 1});
  ASSERT_TRUE(release(*device, {}));
  ASSERT_EQ(outcome(), 1);
  slot_->expect_holds(bytes);
  if (has_buttons()) {
    EXPECT_EQ(buttons().allocations(), allocations);
  }
}

TEST_F(CudaDeviceTest, FreesItsGpuMemory) {
  if (!has_buttons()) GTEST_SKIP();
  const auto before = buttons().allocations();
  {
    const auto device = this->device();
    start(*device, nullptr);
    ASSERT_TRUE(release(*device, {}));
    ASSERT_EQ(outcome(), 1);
    start(*device, nullptr);  // and ends in the middle
  }
  EXPECT_EQ(buttons().allocations(), before);
}

TEST_F(CudaDeviceTest, RefusesMemoryOutsideTheGpu) {
  AutoDevice device(1, small_staging);
  EXPECT_NO_THROW(device.reach(CKPT_HOST, this));
  EXPECT_THROW(device.reach(CKPT_DEVICE, this), Failure);
  EXPECT_NO_THROW(device.reach(CKPT_DEVICE, overlapped_plan_.targets()[0].data));
}

}  // namespace
}  // namespace ckpt::device
