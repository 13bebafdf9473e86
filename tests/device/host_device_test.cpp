#include "device/host_device.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/error.hpp"

namespace ckpt::device {
namespace {

struct AlignedFree {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Packing = std::unique_ptr<std::byte, AlignedFree>;

// Tensors of odd sizes, so that leaves hold parts of many, and some hold part of one.
class HostDeviceTest : public testing::TestWithParam<unsigned> {
 protected:
  HostDeviceTest() {
    std::uint64_t state = 5;
    for (const std::size_t size : {1ul, 0ul, 200'000ul, 7ul, 65'536ul, 3ul, 1'500'001ul, 64ul, 0ul, 77ul}) {
      tensors_.emplace_back(size);
      for (std::byte& byte : tensors_.back())
        byte = static_cast<std::byte>((state = state * 6364136223846793005ull + 1) >> 56);
    }
    packed_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, (plan().length_bytes() + 4095) / 4096 * 4096)));
    digests_.resize(plan().leaves());
  }
  Plan plan() {
    std::vector<Plan::Region> regions;
    for (auto& tensor : tensors_) regions.push_back({tensor.data(), tensor.size()});
    return Plan(regions);
  }
  Packed packed() { return {packed_.get(), digests_.data()}; }
  void expect_captured() {
    std::vector<std::byte> all;
    for (const auto& tensor : tensors_) all.insert(all.end(), tensor.begin(), tensor.end());
    std::vector<std::uint64_t> digests(digests_.size());
    kernels::digest_leaves(all.data(), all.size(), digests.data());
    EXPECT_EQ(std::memcmp(packed_.get(), all.data(), all.size()), 0);
    EXPECT_EQ(digests_, digests);
  }

  static void start(HostDevice& device, std::span<const Device::Copy> copies) {
    static const Plan nothing({});
    device.start(copies, {&nothing, {}}, nullptr);
  }
  void start(HostDevice& device, const Plan& plan) {
    const Device::Copy copy{&plan, packed()};
    start(device, {&copy, 1});
  }
  // Whether everything is whole in time.
  static bool finish(HostDevice& device, std::int64_t timeout_ms) {
    bool whole = false;
    return device.release({}, timeout_ms, [&](bool is_whole) { whole = is_whole; }) && whole;
  }
  void capture(HostDevice& device, const Plan& plan) {
    start(device, plan);
    ASSERT_TRUE(finish(device, 30'000));
  }

  std::vector<std::vector<std::byte>> tensors_;
  Packing packed_;
  std::vector<std::uint64_t> digests_;
};

TEST_P(HostDeviceTest, CapturesByteForByteWithDigests) {
  HostDevice device(GetParam());
  const Plan plan = this->plan();
  for (int round = 0; round < 20; ++round) {
    tensors_[2][0] = static_cast<std::byte>(round);
    start(device, plan);
    ASSERT_TRUE(finish(device, 30'000));
    expect_captured();
  }
  tensors_[2][0] = std::byte{99};
  device.start({}, {&plan, packed()}, nullptr);
  expect_captured();
}

TEST_P(HostDeviceTest, SlicesHoldTheBytesAndDigestsOfTheWhole) {
  HostDevice device(GetParam());
  const Plan plan = this->plan();
  const std::size_t cut = 2 * kernels::leaf_size_bytes;
  const Plan slices[] = {plan.slice(0, cut), plan.slice(cut, plan.length_bytes() - cut)};
  const Device::Copy copies[] = {{&slices[0], packed()}, {&slices[1], {packed_.get() + cut, digests_.data() + 2}}};
  start(device, copies);
  ASSERT_TRUE(finish(device, 30'000));
  expect_captured();
}

TEST_P(HostDeviceTest, LoadsACapture) {
  HostDevice device(GetParam());
  const Plan plan = this->plan();
  capture(device, plan);
  const auto before = tensors_;
  for (auto& tensor : tensors_) std::fill(tensor.begin(), tensor.end(), std::byte{0});
  EXPECT_FALSE(device.load(plan, {packed_.get(), digests_.data()}, nullptr));
  EXPECT_EQ(tensors_, before);
}

TEST_P(HostDeviceTest, NamesALeafThatDoesNotMatch) {
  HostDevice device(GetParam());
  const Plan plan = this->plan();
  capture(device, plan);
  packed_.get()[5 * kernels::leaf_size_bytes + 17] ^= std::byte{1};
  EXPECT_EQ(device.load(plan, {packed_.get(), digests_.data()}, nullptr), std::optional<std::size_t>(5));
}

TEST_P(HostDeviceTest, CancelledCopyWritesNothingLater) {
  HostDevice device(GetParam());
  const Plan plan = this->plan();
  for (int round = 0; round < 50; ++round) {
    start(device, plan);
    device.cancel();
    std::memset(packed_.get(), 0, plan.length_bytes());
    std::vector<std::byte> zeros(plan.length_bytes());
    ASSERT_EQ(std::memcmp(packed_.get(), zeros.data(), zeros.size()), 0);
  }
  start(device, plan);
  ASSERT_TRUE(finish(device, 30'000));
  expect_captured();
}

TEST_P(HostDeviceTest, EmptyPlanCompletesImmediately) {
  HostDevice device(GetParam());
  const Plan empty({});
  EXPECT_TRUE(finish(device, 0));
  start(device, empty);
  EXPECT_TRUE(finish(device, 0));
  device.cancel();
  EXPECT_FALSE(device.load(empty, {packed_.get(), digests_.data()}, nullptr));
}

TEST_P(HostDeviceTest, AcceptsOnlyHostMemory) {
  HostDevice device(GetParam());
  EXPECT_NO_THROW(device.reach(CKPT_HOST, this));
  EXPECT_THROW(device.reach(CKPT_DEVICE, this), Failure);
}

INSTANTIATE_TEST_SUITE_P(Threads, HostDeviceTest, testing::Values(1u, 2u, 5u));

}  // namespace
}  // namespace ckpt::device
