// Measures capture from a GPU and restore to it, digests included. It compares them with one cuMemcpyAsync of as many
// bytes from or to pinned host memory, which is the peak of the link. That copy is measured with our own memory, which
// is registered with the driver, and with memory that the driver allocated. The better one counts. All sides run in one
// process. The medians are compared. The state is one large tensor, or GPT-2's tensors with as many layers as fill the
// size.
//
// A restore is measured in two ways: from memory that was just mapped, through pinned buffers, as restore() does it,
// and from memory that is already pinned.
//
// It also measures the host's time for start() and release(), which snapshot() and before_update() call.
//
// It measures GPU replication as far as one GPU can show it: a communicator of one rank sends to itself, into host
// memory. Several sub-buffers are compared with one, in several sizes.
//
//   bench_gpu [MEBIBYTES [ROUNDS [copy|exchange]]]
//
// If there is no GPU that this build can use, the bench says so and ends with status 3.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/mapping.hpp"
#include "base/unique_fd.hpp"
#include "bench/comparison.hpp"
#include "bench/gpt2.hpp"
#include "bench/parts.hpp"
#include "device/cuda_copy.hpp"
#include "device/cuda_device.hpp"
#include "device/cuda_kernels.hpp"
#include "device/cuda_table.hpp"
#include "gpu_replication/cuda_exchange.hpp"

namespace {

using namespace ckpt;
using namespace ckpt::device;
using bench::Side;

constexpr std::uint64_t mebibyte = 1 << 20;
constexpr std::uint64_t staging_bytes = 128 * mebibyte;
constexpr std::size_t tensor_alignment_bytes = 256;
constexpr double host_goal_us = 200;

void require(bool condition, const std::string& what) {
  if (!condition) throw Failure(CKPT_ERR_INTERNAL, what);
}

UniqueFd memory_file(std::size_t size_bytes) {
  UniqueFd file(::memfd_create("ckptengine-bench", MFD_CLOEXEC));
  require(file && ::ftruncate(file.get(), static_cast<off_t>(size_bytes)) == 0, "there is no host memory");
  return file;
}

// Room for a piece in touched host memory, which is shared as an arena's slots are.
class Slot {
 public:
  explicit Slot(const Plan& plan)
      : digests_(plan.leaves()),
        size_bytes_((plan.leaves() + 1) * kernels::leaf_size_bytes),
        file_(memory_file(size_bytes_)),
        mapping_(map(Mapping::Access::write)) {
    mapping_.populate(0, size_bytes_, 1);
  }
  Range range() const { return {data(), size_bytes_}; }
  Range digests() { return {reinterpret_cast<std::byte*>(digests_.data()), digests_.size() * sizeof(digests_[0])}; }
  Packed packed() { return {data(), digests_.data()}; }
  std::byte* data() const { return mapping_.data(); }
  // Maps the memory once more, at another address.
  Mapping map(Mapping::Access access) const { return Mapping(file_.get(), size_bytes_, access, "a slot"); }

 private:
  std::vector<std::uint64_t> digests_;
  const std::size_t size_bytes_;
  const UniqueFd file_;
  const Mapping mapping_;
};

// Tensors in one allocation, each at an aligned address, as PyTorch's allocator places them.
class Tensors {
 public:
  explicit Tensors(const std::vector<std::size_t>& sizes) : memory_(total_bytes(sizes)) {
    std::vector<Plan::Region> regions;
    std::size_t at = 0;
    for (const std::size_t size_bytes : sizes) {
      regions.push_back({reinterpret_cast<std::byte*>(memory_.pointer() + at), size_bytes, CKPT_DEVICE});
      at += aligned(size_bytes);
    }
    plan_.emplace(regions);
  }
  const Plan& plan() const { return *plan_; }
  CUdeviceptr pointer() const { return memory_.pointer(); }

 private:
  static std::size_t aligned(std::size_t size_bytes) {
    return (size_bytes + tensor_alignment_bytes - 1) / tensor_alignment_bytes * tensor_alignment_bytes;
  }
  static std::size_t total_bytes(const std::vector<std::size_t>& sizes) {
    std::size_t total = 0;
    for (const std::size_t size_bytes : sizes) total += aligned(size_bytes);
    return total;
  }
  DeviceMemory memory_;
  std::optional<Plan> plan_;
};

double seconds(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return 1e-3 * milliseconds_between(begin, Clock::now());
}

// Returns the rate of each side, in GB/s.
std::vector<double> rates(const std::string& name, const std::vector<Side>& sides, std::size_t bytes, int rounds) {
  std::vector<double> all;
  for (const bench::Measured& found : bench::measure(name, sides, rounds))
    all.push_back(bench::gigabytes_per_second(bytes, found.seconds));
  return all;
}

// A state on the GPU, a slot for it, and the device that copies between them.
class Rig {
 public:
  Rig(const std::vector<std::size_t>& sizes, std::uint64_t device_staging_bytes)
      : tensors_(sizes), slot_(tensors_.plan()), device_(0, device_staging_bytes) {
    device_.attach({slot_.range(), slot_.digests()}, nullptr);
    require(device_.wait_until_attached(Deadline::in_ms(600'000)), "pinning took longer than ten minutes");
    require(!device_.broken(), device_.failure());
  }
  std::size_t size_bytes() const { return tensors_.plan().length_bytes(); }
  std::uint64_t staging_bytes_taken() const { return device_.staging_bytes(); }
  std::byte* slot() const { return slot_.data(); }

  void start() {
    const Device::Copy copy{&tensors_.plan(), slot_.packed()};
    device_.start({&copy, 1}, {&nothing_, {}}, stream());
  }
  void release() {
    const Stream streams[] = {stream()};
    const auto done = [this](bool whole) {
      is_whole_ = whole;
      captured_.release();
    };
    require(device_.release(streams, 60'000, done), "a capture failed: " + device_.failure());
  }
  void wait_until_captured() {
    captured_.acquire();
    require(is_whole_, "a capture failed: " + device_.failure());
  }
  void capture() {
    start();
    release();
    wait_until_captured();
  }

  void restore_from(const std::byte* data) {
    const auto wrong_leaf = device_.load(tensors_.plan(), {data, slot_.packed().digests}, stream());
    require(!wrong_leaf, "a leaf does not match");
  }
  // Returns the seconds of a restore from a new mapping, without the time to map and unmap. On most cards, memory that
  // is mapped only for reading cannot be pinned.
  double restore_afresh(Mapping::Access access) {
    const Mapping fresh = slot_.map(access);
    return seconds([&] { restore_from(fresh.data()); });
  }

  void copy_to_host(void* to) {
    device::copy_to_host(to, tensors_.pointer(), size_bytes(), stream_);
    wait();
  }
  void copy_to_device(const void* from) {
    device::copy_to_device(tensors_.pointer(), from, size_bytes(), stream_);
    wait();
  }

 private:
  Stream stream() const { return static_cast<CUstream>(stream_); }
  void wait() const {
    done_.record(stream_);
    while (!done_.reached()) {
    }
  }

  const Tensors tensors_;
  const Plan nothing_{{}};
  Slot slot_;
  bool is_whole_ = false;
  std::binary_semaphore captured_{0};
  const BackgroundStream stream_;
  const Event done_;
  CudaDevice device_;
};

// Compares each of our ways with the better of the two plain copies.
void compare_with_peak(const std::vector<Side>& ours, const std::function<void()>& registered,
                       const std::function<void()>& allocated, std::size_t bytes, int rounds) {
  std::vector<Side> all = ours;
  all.push_back(bench::timed("copy_registered", bytes, registered));
  all.push_back(bench::timed("copy_allocated", bytes, allocated));
  const std::vector<double> found = rates("peak", all, bytes, rounds);
  const double peak = std::max(found[ours.size()], found[ours.size() + 1]);
  for (std::size_t i = 0; i < ours.size(); ++i) bench::print_ratio(bench::ratio_of_rates(ours[i].name, found[i], peak));
}

void measure_copies(const std::string& name, const std::vector<std::size_t>& sizes, int rounds) {
  const Context context(0);
  const ContextScope scope(context);
  Rig rig(sizes, staging_bytes);
  const std::size_t bytes = rig.size_bytes();
  const PinnedMemory allocated(bytes);
  compare_with_peak(
      {bench::timed("gpu_capture_" + name, bytes, [&] { rig.capture(); })}, [&] { rig.copy_to_host(rig.slot()); },
      [&] { rig.copy_to_host(allocated.as<void>()); }, bytes, rounds);
  rig.capture();  // so that the slot has the piece again
  const auto afresh = [&](Mapping::Access access) {
    return [&rig, access](benchmark::UserCounters&) { return rig.restore_afresh(access); };
  };
  compare_with_peak(
      {{"gpu_restore_" + name, bytes, afresh(Mapping::Access::write)},
       {"gpu_restore_pageable_" + name, bytes, afresh(Mapping::Access::read)},
       bench::timed("gpu_restore_pinned_" + name, bytes, [&] { rig.restore_from(rig.slot()); })},
      [&] { rig.copy_to_device(rig.slot()); }, [&] { rig.copy_to_device(allocated.as<void>()); }, bytes, rounds);
}

// Measures the host's time. `pause`: the time from the snapshot to the update.
void measure_host_time(const std::string& name, const std::vector<std::size_t>& sizes,
                       std::uint64_t device_staging_bytes, std::chrono::milliseconds pause, int rounds) {
  const Context context(0);
  const ContextScope scope(context);
  Rig rig(sizes, device_staging_bytes);
  rig.capture();
  const auto calls = [&](benchmark::UserCounters& counters) {
    const double start_s = seconds([&] { rig.start(); });
    std::this_thread::sleep_for(pause);
    const double release_s = seconds([&] { rig.release(); });
    rig.wait_until_captured();
    counters["start_us"] = 1e6 * start_s;
    counters["release_us"] = 1e6 * release_s;
    return start_s + release_s;
  };
  std::printf("host time, %s: %.0f MiB of state, %.0f MiB of sub-buffers\n", name.c_str(),
              static_cast<double>(rig.size_bytes()) / mebibyte,
              static_cast<double>(rig.staging_bytes_taken()) / mebibyte);
  const auto found = bench::measure("gpu_host_calls_" + name, {{"start_and_release", 0, calls}}, rounds);
  const double ours_us = 1e6 * found.front().seconds;
  bench::print_ratio({.name = "gpu_host_calls_" + name,
                      .value = ours_us / host_goal_us,
                      .ours = ours_us,
                      .theirs = host_goal_us,
                      .unit = "us",
                      .against = "goal"});
}

std::vector<std::size_t> gpt2_sizes(std::size_t total_bytes) {
  std::vector<std::size_t> sizes;
  for (const auto& tensor : bench::gpt2(total_bytes)) sizes.push_back(bench::bytes_of(tensor));
  return sizes;
}

// A rank that sends packed tensors to itself through sub-buffers.
class Loop {
 public:
  Loop(const Tensors& tensors, Slot& slot, std::uint32_t buffers, std::uint64_t chunk_bytes)
      : length_bytes_(tensors.plan().length_bytes()),
        plan_({{length_bytes_}, 2 * buffers * chunk_bytes, buffers, kernels::leaf_size_bytes}),
        pinned_(slot.range().data, slot.range().size_bytes, CU_MEMHOSTREGISTER_PORTABLE),
        to_(slot.data()),
        exchange_(std::make_unique<NcclComm>(NcclComm::new_id(), 1, 0), {.reserved_bytes = 2 * buffers * chunk_bytes}) {
    const Plan* const plans[] = {&tensors.plan()};
    RetiredMemory none;
    table_.assign(plans, CudaTable::Images::copied, none);
    table_.upload(stream_);
    const Event uploaded;
    uploaded.record(stream_);
    const Deadline deadline = Deadline::in_ms(60'000);
    while (!uploaded.reached() || !exchange_.meet()) require(!deadline.passed(), "NCCL does not begin");
  }
  void run() {
    const auto fill = [this](const CudaExchange::Chunk& chunk, CUstream stream) {
      kernels_.pack(table_.job(0, chunk.first_byte, chunk.size_bytes, chunk.to), 0, stream);
      chunk.filled.record(stream);
      return CudaExchange::Filling::begun;
    };
    exchange_.begin(plan_, fill, {to_});
    exchange_.allow(plan_.steps());
    while (!exchange_.over()) exchange_.advance();
  }

 private:
  const std::uint64_t length_bytes_;
  const schedule::ExchangePlan plan_;
  const Registration pinned_;
  std::byte* const to_;
  const BackgroundStream stream_;
  const CudaKernels kernels_;
  CudaTable table_;
  CudaExchange exchange_;
};

void measure_exchange(std::size_t total_bytes, int rounds) {
  const Context context(0);
  const ContextScope scope(context);
  const Tensors tensors({total_bytes / 4});  // a quarter is enough for many steps
  Slot slot(tensors.plan());
  const std::size_t bytes = tensors.plan().length_bytes();
  for (const std::uint64_t chunk_bytes : {4 * mebibyte, 32 * mebibyte}) {
    for (const std::uint32_t buffers : {1u, 2u, 4u}) {
      Loop loop(tensors, slot, buffers, chunk_bytes);
      const std::string name = std::to_string(buffers) + "_sub_buffers_of_" + std::to_string(chunk_bytes / mebibyte);
      bench::measure("exchange", {bench::timed(name + "_mib", bytes, [&] { loop.run(); })}, rounds);
    }
  }
  Slot other(tensors.plan());
  Loop pipelined(tensors, slot, 4, 16 * mebibyte), unpipelined(tensors, other, 1, 16 * mebibyte);
  bench::compare(
      "gpu_exchange_pipelined", bytes, rounds, [&] { pipelined.run(); }, [&] { unpipelined.run(); });
}

void run_copies(bench::Parts& parts, std::size_t total_bytes, int rounds) {
  const std::vector<std::size_t> gpt2 = gpt2_sizes(total_bytes);
  // Room for the whole state and one sub-buffer.
  const std::uint64_t enough_bytes = std::accumulate(gpt2.begin(), gpt2.end(), 32 * mebibyte);
  parts.run("copying one large tensor", [&] { measure_copies("big", {total_bytes}, rounds); });
  parts.run("copying GPT-2's tensors", [&] { measure_copies("gpt2", gpt2, rounds); });
  parts.run("the host's time with all of the state in sub-buffers",
            [&] { measure_host_time("staged", gpt2, enough_bytes, std::chrono::milliseconds(20), rounds); });
  parts.run("the host's time with more state than sub-buffers",
            [&] { measure_host_time("unstaged", gpt2, staging_bytes, std::chrono::milliseconds(0), rounds); });
}

}  // namespace

int main(int count, char** arguments) {
  bench::initialize(&count, arguments);
  const std::size_t total_bytes = static_cast<std::size_t>(count > 1 ? std::atoi(arguments[1]) : 1024) << 20;
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 15;
  const std::string only = count > 3 ? arguments[3] : "";
  try {
    cuda_driver();
  } catch (const Failure& failure) {
    std::printf("nothing is measured: the state %s\n", failure.what());
    return bench::nothing_measured;
  }
  bench::Parts parts("bench_gpu");
  if (only != "exchange") run_copies(parts, total_bytes, rounds);
  if (only != "copy") parts.run("the GPU replication", [&] { measure_exchange(total_bytes, rounds); });
  return parts.finish();
}
