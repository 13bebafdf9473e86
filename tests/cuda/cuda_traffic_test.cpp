// What a capture and a restore move, as the test double of the driver counts it. `./dev bench gpu_counts` counts the
// same for a state of realistic size.
#include <map>
#include <string>

#include "cuda_device_fixture.hpp"

namespace ckpt::device {
namespace {

constexpr std::uint64_t digest_bytes = sizeof(std::uint64_t), entry_bytes = sizeof(kernels::device::DeviceSegment);

class CudaTrafficTest : public GpuTest {
 protected:
  void SetUp() override {
    if (!has_buttons()) GTEST_SKIP() << "a real driver counts nothing";
    GpuTest::SetUp();
  }

  struct Counts {
    std::uint64_t count = 0, device_read = 0, device_written = 0, to_host = 0, to_device = 0;
    bool operator==(const Counts&) const = default;
  };
  static Counts of(const std::string& name) {
    ckpt_double_traffic sums{};
    for (std::uint64_t i = 0; buttons().traffic_at(i, &sums) != 0; ++i)
      if (sums.name == name)
        return {sums.count, sums.device_read_bytes, sums.device_written_bytes, sums.to_host_bytes,
                sums.to_device_bytes};
    return {};
  }
  // What this kind of work has done since the last call.
  Counts take(const std::string& name) {
    const Counts now = of(name), before = std::exchange(taken_[name], now);
    return {now.count - before.count, now.device_read - before.device_read, now.device_written - before.device_written,
            now.to_host - before.to_host, now.to_device - before.to_device};
  }
  void forget() {
    for (const char* name : {"ckpt_pack", "ckpt_unpack", "copy_to_host", "copy_to_device", "copy_within", "fill"})
      take(name);
  }

  // Captures tensors of these sizes, and restores them.
  void capture_and_restore(const std::vector<std::size_t>& sizes, std::uint64_t staging_bytes) {
    const GpuTensors tensors(sizes);
    const Plan plan = tensors.plan(), nothing{{}};
    const Slot slot(plan);
    const auto bytes = tensors.fill(1);
    CudaDevice device(0, staging_bytes);
    device.attach({slot.range()}, nullptr);
    ASSERT_TRUE(device.wait_until_attached(Deadline::in_ms(50'000)));
    std::atomic<int> outcome{0};
    forget();
    const Device::Copy copy{&plan, slot.packed()};
    device.start({&copy, 1}, {&nothing, {}}, nullptr);
    ASSERT_TRUE(device.release({}, 50'000, [&](bool whole) { outcome = whole ? 1 : -1; }));
    eventually([&] { return outcome != 0; });
    EXPECT_EQ(outcome, 1);
    slot.expect_holds(bytes);
    packed_ = take("ckpt_pack");
    copied_to_host_ = take("copy_to_host");
    copied_to_device_ = take("copy_to_device");
    EXPECT_EQ(take("ckpt_unpack"), Counts{});
    EXPECT_EQ(device.load(plan, slot.const_packed(), nullptr), std::nullopt);
  }

  Counts packed_, copied_to_host_, copied_to_device_;
  std::map<std::string, Counts> taken_;
};

TEST_F(CudaTrafficTest, CountsCopiesOnceOnTheGpuAndOnceOnTheLink) {
  GpuBytes memory(1000);
  forget();
  EXPECT_CUDA(cuMemsetD8Async(memory.pointer(), 1, 500, nullptr));
  memory.write(std::vector<std::byte>(1000));
  memory.read();
  EXPECT_EQ(take("fill"), (Counts{.count = 1, .device_written = 500}));
  EXPECT_EQ(take("copy_to_device"), (Counts{.count = 1, .device_written = 1000, .to_device = 1000}));
  EXPECT_EQ(take("copy_to_host"), (Counts{.count = 1, .device_read = 1000, .to_host = 1000}));
}

TEST_F(CudaTrafficTest, StagedStateIsReadOnceWrittenOnceAndReadByTheCopy) {
  constexpr std::uint64_t state = 2 * leaf + 3, table = 3 * entry_bytes, digests = 3 * digest_bytes;
  capture_and_restore({2 * leaf, 3}, small_staging);
  EXPECT_EQ(packed_, (Counts{.count = 1, .device_read = state + table, .device_written = state + digests}));
  EXPECT_EQ(copied_to_host_, (Counts{.count = 2, .device_read = state + digests, .to_host = state + digests}));
  // What is captured synchronously has a table of its own. Here it has only the last entry.
  constexpr std::uint64_t tables = table + entry_bytes;
  EXPECT_EQ(copied_to_device_, (Counts{.count = 1, .device_written = tables, .to_device = tables}));
}

TEST_F(CudaTrafficTest, RestoreWritesAndReadsEachSubBufferOnce) {
  constexpr std::uint64_t state = 2 * leaf + 3, table = 3 * entry_bytes, digests = 3 * digest_bytes;
  capture_and_restore({2 * leaf, 3}, small_staging);
  EXPECT_EQ(take("ckpt_unpack"), (Counts{.count = 1, .device_read = state + table, .device_written = state + digests}));
  EXPECT_EQ(take("copy_to_host"), (Counts{.count = 1, .device_read = digests, .to_host = digests}));
  EXPECT_EQ(take("copy_to_device"), (Counts{.count = 2, .device_written = state + table, .to_device = state + table}));
}

// Of six chunks of four leaves, four fit into sub-buffers. The first two are direct. The tensor between the large ones
// is packed, with the leaves in which it lies.
TEST_F(CudaTrafficTest, UnstagedChunksAreReadOnceByKernelAndOnceByCopy) {
  constexpr std::uint64_t leaves = 24, chunks = 6, staged_chunks = 4, chunk = 4 * leaf;
  constexpr std::uint64_t state = leaves * leaf, table = 4 * entry_bytes, digests = leaves * digest_bytes;
  capture_and_restore({leaf + 100, 16, state - leaf - 116}, small_staging);
  const std::uint64_t stored = leaf + staged_chunks * chunk;
  EXPECT_EQ(packed_,
            (Counts{.count = chunks, .device_read = state + chunks * table, .device_written = stored + digests}));
  // The first chunk takes three copies of data.
  EXPECT_EQ(copied_to_host_,
            (Counts{.count = 2 * chunks + 2, .device_read = state + digests, .to_host = state + digests}));
}

// What GPU replication takes from a capture. Before the update a kernel packs it, afterwards it is copied out of a
// sub-buffer. Neither crosses the link.
TEST_F(CudaTrafficTest, ReadsAndWritesCapturedBytesOnceWithinTheGpu) {
  constexpr std::uint64_t taken = leaf + 3, table = 3 * entry_bytes;
  const GpuTensors tensors({2 * leaf, 3});
  const Plan plan = tensors.plan(), nothing{{}};
  const Slot slot(plan);
  const auto bytes = tensors.fill(1);
  const GpuBytes to(taken);
  const Event copied;
  CudaStagingPipeline pipeline(small_staging);
  const auto take_bytes = [&](std::uint64_t capture) {
    return pipeline.copy_captured(capture, leaf, taken, to.pointer(), copied);
  };
  const auto expect_taken = [&] {
    ASSERT_TRUE(eventually([&] { return copied.reached(); }));
    EXPECT_EQ(to.read(), std::vector(bytes.begin() + leaf, bytes.end()));
    take("copy_to_host");
  };
  const Device::Copy copy{&plan, slot.packed()};
  pipeline.begin({&copy, 1}, {&nothing, {}}, nullptr);
  ASSERT_TRUE(eventually([&] { return pipeline.entered(); }));
  forget();
  ASSERT_TRUE(take_bytes(1));
  expect_taken();
  EXPECT_EQ(take("ckpt_pack"), (Counts{.count = 1, .device_read = taken + table, .device_written = taken}));
  pipeline.pack_next();
  pipeline.copy_next();
  pipeline.release({});
  pipeline.end();
  ASSERT_TRUE(eventually([&] { return pipeline.arrived(); }));
  forget();
  ASSERT_TRUE(take_bytes(1));
  expect_taken();
  EXPECT_EQ(take("copy_within"), (Counts{.count = 1, .device_read = taken, .device_written = taken}));
  EXPECT_FALSE(take_bytes(2)) << "there is no such capture";
  pipeline.begin({&copy, 1}, {&nothing, {}}, nullptr);
  ASSERT_TRUE(eventually([&] { return pipeline.entered(); }));
  EXPECT_TRUE(take_bytes(1)) << "nothing was packed over it yet";
  pipeline.abandon();
  EXPECT_FALSE(take_bytes(2)) << "its tensors may change";
  pipeline.release({});
  pipeline.end();
  ASSERT_TRUE(eventually([&] { return pipeline.arrived(); }));
}

}  // namespace
}  // namespace ckpt::device
