// The device for tensors on a GPU, by itself: what is captured, when tensors may change, and what happens on bad days.
#include "device/cuda_device.hpp"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <memory>

#include "base/error.hpp"
#include "device/auto_device.hpp"
#include "device/cuda_copy.hpp"
#include "gpu.hpp"

namespace ckpt::device {
namespace {

using namespace testing_support;
using testing::HasSubstr;

constexpr std::size_t leaf = kernels::leaf_size_bytes;
constexpr std::uint64_t small_staging = 16 * leaf;  // sub-buffers of four leaves

// A place for a piece, as a slot is one: whole pages, and behind them those of the digests.
class Slot {
 public:
  explicit Slot(const Plan& plan) : size_bytes_((plan.leaves() + 1) * leaf * 2), leaves_(plan.leaves()) {
    data_ = ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~Slot() { ::munmap(data_, size_bytes_); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  Range range() const { return {data(), size_bytes_}; }
  Packed packed() const { return {data(), digests()}; }
  ConstPacked const_packed() const { return {data(), digests()}; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::uint64_t* digests() const { return reinterpret_cast<std::uint64_t*>(data() + size_bytes_ / 2); }

  void expect_holds(const std::vector<std::byte>& bytes) const {
    EXPECT_EQ(std::memcmp(data(), bytes.data(), bytes.size()), 0);
    std::vector<std::uint64_t> expected(leaves_);
    kernels::digest_leaves(bytes.data(), bytes.size(), expected.data());
    EXPECT_EQ(std::vector(digests(), digests() + leaves_), expected);
  }

 private:
  std::size_t size_bytes_, leaves_;
  void* data_;
};

// Tensors of odd sizes on the GPU.
class GpuTensors {
 public:
  explicit GpuTensors(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size_bytes : sizes) memories_.push_back(std::make_unique<GpuBytes>(size_bytes));
  }
  Plan plan() const {
    std::vector<Plan::Region> regions;
    for (const auto& memory : memories_)
      regions.push_back({static_cast<std::byte*>(memory->data()), memory->size_bytes(), CKPT_DEVICE});
    return Plan(regions);
  }
  // Waits.
  std::vector<std::byte> fill(std::uint64_t seed) const {
    std::vector<std::byte> all;
    for (const auto& memory : memories_) {
      const auto bytes = bytes_of(memory->size_bytes(), ++seed * 1000);
      memory->write(bytes);
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }
  std::vector<std::byte> read() const {
    std::vector<std::byte> all;
    for (const auto& memory : memories_) {
      const auto bytes = memory->read();
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }
  // What an optimizer step is here: enqueued, not waited for.
  void update(CUstream stream, unsigned char value) const {
    for (const auto& memory : memories_)
      EXPECT_CUDA(cuMemsetD8Async(memory->pointer(), value, memory->size_bytes(), stream));
  }

 private:
  std::vector<std::unique_ptr<GpuBytes>> memories_;
};

std::vector<std::size_t> odd_sizes() {
  std::vector<std::size_t> sizes = {1'500'001, 200'000, 65'536, 7, 64, 3, 77, 1};
  for (std::size_t i = 1; i < 300; ++i) sizes.push_back(i);  // many small ones in a leaf
  return sizes;
}

class CudaDeviceTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped() || context_ == nullptr) return;
    overlapped_ = std::make_unique<GpuTensors>(odd_sizes());
    synchronous_ = std::make_unique<GpuTensors>(std::vector<std::size_t>{1000, 70'000, 1});
    overlapped_plan_ = overlapped_->plan();
    synchronous_plan_ = synchronous_->plan();
    slot_ = std::make_unique<Slot>(overlapped_plan_);
    private_slot_ = std::make_unique<Slot>(synchronous_plan_);
  }
  void TearDown() override {
    if (buttons().reset != nullptr) buttons().reset();
    overlapped_.reset();
    synchronous_.reset();
    GpuTest::TearDown();
  }

  std::unique_ptr<CudaDevice> device(std::uint64_t staging_bytes = small_staging,
                                     std::int64_t drain_timeout_ms = CudaDevice::default_drain_timeout_ms) const {
    auto made = std::make_unique<CudaDevice>(0, staging_bytes, drain_timeout_ms);
    attach(*made, {slot_->range(), private_slot_->range()});
    return made;
  }
  static void attach(Device& device, std::vector<Range> ranges) {
    device.attach(std::move(ranges));
    EXPECT_TRUE(device.wait_until_attached(Deadline::in_ms(50'000)));
  }
  void start(Device& device, CUstream stream) const {
    const Device::Copy copy{&overlapped_plan_, slot_->packed()};
    device.start({&copy, 1}, {&synchronous_plan_, private_slot_->packed()}, stream);
  }
  bool release(Device& device, std::vector<Stream> streams) {
    outcome_ = 0;
    return device.release(streams, 50'000, [this](bool whole) { outcome_ = whole ? 1 : -1; });
  }
  // 1: whole; -1: not; 0: neither in time.
  int outcome() {
    eventually([this] { return outcome_ != 0; });
    return outcome_;
  }

  Plan overlapped_plan_{{}}, synchronous_plan_{{}};
  std::unique_ptr<GpuTensors> overlapped_, synchronous_;
  std::unique_ptr<Slot> slot_, private_slot_;
  std::atomic<int> outcome_{0};
};

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

TEST_F(CudaDeviceTest, CapturesWhatTheCallersStreamHasMadeByThen) {
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

TEST_F(CudaDeviceTest, AnUpdateEnqueuedRightAfterReleaseTearsNothing) {
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

TEST_F(CudaDeviceTest, TheDefaultStreamsAreStreamsLikeOthers) {
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

TEST_F(CudaDeviceTest, AStreamThatWasNotNamedDoesNotWait) {
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

TEST_F(CudaDeviceTest, StagingAsLargeAsTheStateFreesTheUpdateBeforeAnythingIsCopiedOut) {
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

TEST_F(CudaDeviceTest, ItsThreadKeepsNoMoreEnqueuedThanThereAreSubBuffers) {
  if (!has_buttons()) GTEST_SKIP();
  const auto device = this->device();
  buttons().hold(CKPT_DOUBLE_TO_HOST, 1);
  const auto before = buttons().done(CKPT_DOUBLE_KERNEL);
  start(*device, nullptr);
  // Pack and digest of what is captured synchronously, and of four sub-buffers.
  EXPECT_TRUE(eventually([&] { return buttons().done(CKPT_DOUBLE_KERNEL) == before + 10; }));
  buttons().hold(CKPT_DOUBLE_TO_HOST, 0);
  ASSERT_TRUE(release(*device, {}));
  ASSERT_EQ(outcome(), 1);
}

TEST_F(CudaDeviceTest, TakesLessStagingWhereLessMemoryIsFree) {
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

TEST_F(CudaDeviceTest, ACancelledCopyTouchesNothingAfterwards) {
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

TEST_F(CudaDeviceTest, HostTensorsBesideThoseOfTheGpuAreCapturedWhenStartReturns) {
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

TEST_F(CudaDeviceTest, LoadsWhatWasCapturedAfterWhatTheStreamStillWrites) {
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

TEST_F(CudaDeviceTest, LoadsWhatCannotBePinnedThroughPinnedBuffers) {
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
  void* const memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                              -1, 0);
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

TEST_F(CudaDeviceTest, LeavesNothingOnTheGpu) {
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

TEST_F(CudaDeviceTest, RefusesMemoryThatIsNotTheGpus) {
  AutoDevice device(1, small_staging);
  EXPECT_NO_THROW(device.reach(CKPT_HOST, this));
  EXPECT_THROW(device.reach(CKPT_DEVICE, this), Failure);
  EXPECT_NO_THROW(device.reach(CKPT_DEVICE, overlapped_plan_.targets()[0].data));
}

}  // namespace
}  // namespace ckpt::device
