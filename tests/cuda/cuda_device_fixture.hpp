// For tests of the device for tensors on a GPU, by itself.
#pragma once

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <memory>

#include "device/cuda_copy.hpp"
#include "device/cuda_device.hpp"
#include "gpu.hpp"

namespace ckpt::device {

using namespace testing_support;

inline constexpr std::size_t leaf = kernels::leaf_size_bytes;
inline constexpr std::uint64_t small_staging = 16 * leaf;  // sub-buffers of four leaves

// A place for a piece, as a slot is one: whole pages, and behind them those of the digests.
// It is always one registration, wherever the system maps it.
class Slot {
 public:
  explicit Slot(const Plan& plan) : size_bytes_((plan.leaves() + 1) * leaf * 2), leaves_(plan.leaves()) {
    mapped_ = ::mmap(nullptr, 2 * size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const std::size_t to_cut = first_part_bytes(mapped_, size_bytes_);
    data_ = static_cast<std::byte*>(mapped_) + (to_cut < size_bytes_ ? to_cut : 0);
  }
  ~Slot() { ::munmap(mapped_, 2 * size_bytes_); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  Range range() const { return {data(), size_bytes_}; }
  Packed packed() const { return {data(), digests()}; }
  ConstPacked const_packed() const { return {data(), digests()}; }
  std::byte* data() const { return data_; }
  std::uint64_t* digests() const { return reinterpret_cast<std::uint64_t*>(data() + size_bytes_ / 2); }

  void expect_holds(const std::vector<std::byte>& bytes) const {
    EXPECT_EQ(std::memcmp(data(), bytes.data(), bytes.size()), 0);
    std::vector<std::uint64_t> expected(leaves_);
    kernels::digest_leaves(bytes.data(), bytes.size(), expected.data());
    EXPECT_EQ(std::vector(digests(), digests() + leaves_), expected);
  }

 private:
  std::size_t size_bytes_, leaves_;
  void* mapped_;
  std::byte* data_;
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

inline std::vector<std::size_t> odd_sizes() {
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

  std::unique_ptr<CudaDevice> device(std::uint64_t staging_bytes = small_staging, const CudaLimits& limits = {}) const {
    auto made = std::make_unique<CudaDevice>(0, staging_bytes, limits);
    attach(*made, {slot_->range(), private_slot_->range()});
    return made;
  }
  static void attach(Device& device, const std::vector<Range>& ranges, const Owner& owner = nullptr) {
    device.attach(ranges, owner);
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

}  // namespace ckpt::device
