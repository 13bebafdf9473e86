// Counts the bytes that captures move, and the kernels that they launch. The captures run on the test double of the
// CUDA driver (tests/cuda/double), so the bench needs no GPU. It measures no time.
//
// The state is GPT-2 (124M) with Adam: each parameter has two moments of the same shape and type. It is captured in
// float32 and in bfloat16, with the default of gpu_staging_bytes and with sub-buffers for the whole state. The update
// comes in two ways:
//
//   behind   training waits for the GPU in each iteration. The update comes when all of the state is in the slot.
//   ahead    training runs ahead of the GPU. It enqueues the update before the GPU gets to the capture.
//
// The lines without a suffix are for float32, the default, and an update that comes ahead.
//
// The second part replicates the state in bfloat16 between two ranks, from GPU to GPU, on the test double of NCCL. Its
// line gpu_replication_pcie_bytes_per_byte counts what crosses PCIe on both ends for each captured byte. A byte that
// NCCL sends crosses twice: from the sender's GPU to its adapter, and from the adapter to the GPU at the receiver.
// There the update comes when the exchange is over (behind), or is enqueued before the GPU gets to the capture (ahead).
//
//   bench_gpu_counts [LAYERS]
#include <cuda.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "../tests/cuda/capturing_ranks.hpp"
#include "../tests/cuda/double/control.h"
#include "../tests/cuda/nccl_double/control.h"
#include "../tests/support/temporary_directory.hpp"
#include "base/clock.hpp"
#include "base/error.hpp"
#include "bench/comparison.hpp"
#include "bench/gpt2.hpp"
#include "bench/parts.hpp"
#include "device/cuda_device.hpp"

namespace {

using namespace ckpt;
using namespace ckpt::device;

constexpr std::uint64_t mebibyte = 1 << 20;
constexpr std::uint64_t default_staging_bytes = 128 * mebibyte;
constexpr double hbm_goal = 2.1, pcie_goal = 1.01, replication_pcie_goal = 4.01;

void require(bool condition, const std::string& what) {
  if (!condition) throw Failure(CKPT_ERR_INTERNAL, what);
}

template <class Condition>
void wait_until(Condition condition) {
  const Deadline deadline = Deadline::in_ms(300'000);
  while (!condition()) {
    require(!deadline.passed(), "a capture did not end within five minutes");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// What each kind of work has done since the start.
using Counts = std::map<std::string, ckpt_double_traffic>;

Counts counts_now() {
  Counts counts;
  ckpt_double_traffic sums{};
  for (std::uint64_t i = 0; ckpt_double_traffic_at(i, &sums) != 0; ++i) counts[sums.name] = sums;
  return counts;
}

Counts difference(const Counts& before, Counts after) {
  for (auto& [name, sums] : after) {
    const auto found = before.find(name);
    if (found == before.end()) continue;
    sums.count -= found->second.count;
    sums.device_read_bytes -= found->second.device_read_bytes;
    sums.device_written_bytes -= found->second.device_written_bytes;
    sums.to_host_bytes -= found->second.to_host_bytes;
    sums.to_device_bytes -= found->second.to_device_bytes;
  }
  std::erase_if(after, [](const auto& entry) { return entry.second.count == 0; });
  return after;
}

bool is_kernel(const std::string& name) { return name.starts_with("ckpt_"); }

// The tensors of a training state in device memory, each at an aligned address, as PyTorch's allocator places them.
class State {
 public:
  State(const std::vector<bench::NamedTensor>& parameters, std::size_t element_bytes) {
    constexpr int of_each = 3;  // the parameter and two moments
    std::vector<Plan::Region> regions;
    for (int i = 0; i < of_each; ++i) {
      for (const auto& parameter : parameters) {
        const std::size_t size_bytes = bench::bytes_of(parameter) / sizeof(float) * element_bytes;
        memories_.emplace_back(size_bytes);
        regions.push_back({reinterpret_cast<std::byte*>(memories_.back().pointer()), size_bytes, CKPT_DEVICE});
      }
    }
    plan_ = std::make_unique<Plan>(regions);
  }
  const Plan& plan() const { return *plan_; }

 private:
  std::vector<DeviceMemory> memories_;
  std::unique_ptr<Plan> plan_;
};

class Slot {
 public:
  explicit Slot(const Plan& plan) : data_bytes_((plan.leaves() + 1) * kernels::leaf_size_bytes) {
    data_ = ::mmap(nullptr, size_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(data_ != MAP_FAILED, "there is no host memory");
  }
  ~Slot() { ::munmap(data_, size_bytes()); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  Range range() const { return {static_cast<std::byte*>(data_), size_bytes()}; }
  Packed packed() const { return {range().data, reinterpret_cast<std::uint64_t*>(range().data + data_bytes_)}; }

 private:
  std::size_t size_bytes() const {
    return data_bytes_ + data_bytes_ / kernels::leaf_size_bytes * sizeof(std::uint64_t);
  }
  const std::size_t data_bytes_;
  void* data_;
};

enum class Update { ahead, behind };

std::uint64_t to_host_bytes(const Counts& counts) {
  std::uint64_t bytes = 0;
  for (const auto& [name, sums] : counts) bytes += sums.to_host_bytes;
  return bytes;
}

// Captures the state once, and returns what that took.
Counts capture(const State& state, std::uint64_t staging_bytes, Update update, std::uint64_t& chunk_bytes) {
  const Slot slot(state.plan());
  const Plan nothing{{}};
  const BackgroundStream stream;
  std::binary_semaphore captured{0};
  bool is_whole = false;
  CudaDevice device(0, staging_bytes);
  device.attach({slot.range()}, nullptr);
  require(device.wait_until_attached(Deadline::in_ms(300'000)), "the slot was not pinned within five minutes");
  chunk_bytes = std::min(CudaRing::default_chunk_max_bytes, device.staging_bytes());

  const Counts before = counts_now();
  const auto hold = [&](int held) {
    ckpt_double_hold(CKPT_DOUBLE_KERNEL, held);
    ckpt_double_hold(CKPT_DOUBLE_TO_HOST, held);
  };
  if (update == Update::ahead) hold(1);
  const Device::Copy copy{&state.plan(), slot.packed()};
  device.start({&copy, 1}, {&nothing, {}}, static_cast<CUstream>(stream));
  if (update == Update::behind)
    wait_until([&] { return to_host_bytes(difference(before, counts_now())) >= state.plan().length_bytes(); });
  const Stream streams[] = {static_cast<CUstream>(stream)};
  const auto done = [&](bool whole) {
    is_whole = whole;
    captured.release();
  };
  require(device.release(streams, 300'000, done), "a capture failed: " + device.failure());
  hold(0);
  captured.acquire();
  require(is_whole, "a capture failed: " + device.failure());
  return difference(before, counts_now());
}

struct Setting {
  std::string suffix;  // of the ratios
  std::size_t element_bytes;
  bool stages_all;
  Update update;
};

void print_table(const Counts& counts, double state_bytes) {
  std::printf("%-16s %8s %12s %12s %12s %12s   (bytes per byte of state)\n", "work", "count", "HBM read", "HBM written",
              "PCIe to host", "PCIe to GPU");
  for (const auto& [name, sums] : counts) {
    const auto per_byte = [&](std::uint64_t bytes) { return static_cast<double>(bytes) / state_bytes; };
    std::printf("%-16s %8llu %12.4f %12.4f %12.4f %12.4f\n", name.c_str(), static_cast<unsigned long long>(sums.count),
                per_byte(sums.device_read_bytes), per_byte(sums.device_written_bytes), per_byte(sums.to_host_bytes),
                per_byte(sums.to_device_bytes));
  }
}

void print_ratios(const std::string& suffix, const Counts& counts, double state_bytes, double sub_buffers) {
  double hbm_bytes = 0, pcie_bytes = 0, launches = 0;
  for (const auto& [name, sums] : counts) {
    hbm_bytes += static_cast<double>(sums.device_read_bytes + sums.device_written_bytes);
    pcie_bytes += static_cast<double>(sums.to_host_bytes + sums.to_device_bytes);
    if (is_kernel(name)) launches += static_cast<double>(sums.count);
  }
  const auto print = [&](const std::string& name, double ours, double theirs, const char* unit, const char* against) {
    bench::print_ratio({name + suffix, ours / theirs, ours, theirs, unit, against});
  };
  print("gpu_hbm_bytes_per_byte", hbm_bytes, state_bytes, "bytes", "state");
  print("gpu_pcie_bytes_per_byte", pcie_bytes, state_bytes, "bytes", "state");
  print("gpu_launches_per_sub_buffer", launches, sub_buffers, "launches", "sub-buffers");
}

void run(const Setting& setting, const std::vector<bench::NamedTensor>& parameters) {
  const State state(parameters, setting.element_bytes);
  const std::uint64_t state_bytes = state.plan().length_bytes();
  const std::uint64_t staging_bytes = setting.stages_all ? state_bytes + 32 * mebibyte : default_staging_bytes;
  std::uint64_t chunk_bytes = 0;
  const Counts counts = capture(state, staging_bytes, setting.update, chunk_bytes);
  std::printf("\n%zu tensors, %.0f MiB of state in %s, sub-buffers of %.0f MiB in all; the update comes %s\n",
              state.plan().targets().size(), static_cast<double>(state_bytes) / mebibyte,
              setting.element_bytes == 4 ? "float32" : "bfloat16", static_cast<double>(staging_bytes) / mebibyte,
              setting.update == Update::ahead ? "ahead" : "behind");
  print_table(counts, static_cast<double>(state_bytes));
  const std::uint64_t sub_buffers = (state_bytes + chunk_bytes - 1) / chunk_bytes;
  print_ratios(setting.suffix, counts, static_cast<double>(state_bytes), static_cast<double>(sub_buffers));
}

// Where the exchange takes its bytes from.
struct Replication {
  const char* suffix;  // of the ratio
  bool is_told;        // of the capture when it begins; otherwise all bytes come from the slot
  bool stages_all;
  Update update;
};

// Replicates the state once between two ranks that both have it. Returns what that took.
Counts replicate(const State& state, const Replication& setting, std::uint64_t& sent_bytes) {
  const std::uint64_t state_bytes = state.plan().length_bytes();
  const test::TemporaryDirectory directory(test::in_memory);
  const BackgroundStream stream;
  testing_support::CapturingRanks ranks(directory.path(), {&state.plan(), &state.plan()},
                                        setting.stages_all ? state_bytes + 32 * mebibyte : default_staging_bytes, {});
  const Counts before = counts_now();
  const std::uint64_t sent_before = ckpt_nccl_double_sent_bytes();
  std::binary_semaphore arrives{0};
  const CUhostFn wait = [](void* semaphore) { static_cast<std::binary_semaphore*>(semaphore)->acquire(); };
  if (setting.update == Update::ahead) check_cuda("cuLaunchHostFunc", cuLaunchHostFunc(stream, wait, &arrives));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    ranks[rank].snapshot(1, static_cast<CUstream>(stream), setting.is_told);
  if (setting.update == Update::behind && setting.is_told) wait_until([&] { return ranks.all_received(1); });
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank].before_update(static_cast<CUstream>(stream));
  arrives.release();
  wait_until([&] { return ranks.all_captured() && ranks.all_received(1); });
  require(ranks.all_match(1), "other bytes arrived than were captured");
  sent_bytes = ckpt_nccl_double_sent_bytes() - sent_before;
  return difference(before, counts_now());
}

void run_replication(const std::vector<bench::NamedTensor>& parameters) {
  const State state(parameters, 2);
  const double state_bytes = static_cast<double>(2 * state.plan().length_bytes());  // of both ranks
  for (const Replication& setting :
       {Replication{"_from_slot", false, false, Update::behind}, Replication{"_staged", true, true, Update::ahead},
        Replication{"_behind", true, false, Update::behind}, Replication{"", true, false, Update::ahead}}) {
    std::uint64_t sent_bytes = 0;
    const Counts counts = replicate(state, setting, sent_bytes);
    double to_host = 0, to_device = 0;
    for (const auto& [name, sums] : counts) {
      to_host += static_cast<double>(sums.to_host_bytes);
      to_device += static_cast<double>(sums.to_device_bytes);
    }
    const auto per_byte = [&](double bytes) { return bytes / state_bytes; };
    std::printf("\nreplication%s: to host %.4f, to GPU %.4f, sent %.4f (bytes per captured byte)\n", setting.suffix,
                per_byte(to_host), per_byte(to_device), per_byte(static_cast<double>(sent_bytes)));
    const double crossed = to_host + to_device + 2 * static_cast<double>(sent_bytes);
    bench::print_ratio({std::string("gpu_replication_pcie_bytes_per_byte") + setting.suffix, per_byte(crossed), crossed,
                        state_bytes, "bytes", "state"});
  }
}

// The parameters of GPT-2 with so many layers.
std::vector<bench::NamedTensor> gpt2_of(int layers) {
  std::vector<bench::NamedTensor> tensors;
  for (std::size_t bytes = 1; tensors.size() < 4 + 12 * static_cast<std::size_t>(layers); bytes += mebibyte)
    tensors = bench::gpt2(bytes);
  return tensors;
}

}  // namespace

int main(int count, char** arguments) {
  const auto parameters = gpt2_of(count > 1 ? std::atoi(arguments[1]) : 12);
  bench::Parts parts("bench_gpu_counts");
  parts.run("the capture", [&] {
    const Context context(0);
    const ContextScope scope(context);
    for (const Setting& setting :
         {Setting{"_staged_behind", 4, true, Update::behind}, Setting{"_staged", 4, true, Update::ahead},
          Setting{"_bf16_behind", 2, false, Update::behind}, Setting{"_bf16", 2, false, Update::ahead},
          Setting{"_behind", 4, false, Update::behind}, Setting{"", 4, false, Update::ahead}})
      run(setting, parameters);
    std::printf("goals: gpu_hbm_bytes_per_byte %.1f, gpu_pcie_bytes_per_byte %.2f\n", hbm_goal, pcie_goal);
  });
  parts.run("the replication", [&] {
    const Context context(0);
    const ContextScope scope(context);
    run_replication(parameters);
    std::printf("goal: gpu_replication_pcie_bytes_per_byte_behind %.2f\n", replication_pcie_goal);
  });
  return parts.finish();
}
