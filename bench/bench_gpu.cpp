// Capture from a GPU and restore to it, digests included, against one pinned cuMemcpyAsync of as many bytes: the peak
// of the link. Both sides take turns in one process, into the same memory; medians are compared. The state is one large
// tensor, and GPT-2's tensor list with as many layers as fill the size.
//
// The device path, as far as one GPU can show it: through a communicator of one rank that sends to itself, into host
// memory, with several sub-buffers against one, and for several sizes of them.
//
//   bench_gpu [MEBIBYTES [ROUNDS [copy|exchange]]]
//
// Says so, and measures nothing, where there is no GPU.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <semaphore>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "bench/gpt2.hpp"
#include "device/cuda_device.hpp"
#include "device/cuda_exchange.hpp"
#include "device/cuda_kernels.hpp"
#include "device/cuda_table.hpp"

namespace {

using namespace ckpt;
using namespace ckpt::device;

constexpr std::uint64_t staging_bytes = std::uint64_t{128} << 20;
constexpr std::size_t tensor_alignment_bytes = 256;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "bench_gpu: %s\n", what);
  std::exit(1);
}

// A place for a piece in touched host memory.
class Slot {
 public:
  explicit Slot(const Plan& plan)
      : digests_(plan.leaves()), size_bytes_((plan.leaves() + 1) * kernels::leaf_size_bytes) {
    data_ = ::mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    require(data_ != MAP_FAILED, "no host memory");
  }
  ~Slot() { ::munmap(data_, size_bytes_); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  Range range() const { return {data(), size_bytes_}; }
  Range digests() { return {reinterpret_cast<std::byte*>(digests_.data()), digests_.size() * sizeof(digests_[0])}; }
  Packed packed() { return {data(), digests_.data()}; }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  std::vector<std::uint64_t> digests_;
  std::size_t size_bytes_;
  void* data_;
};

// Tensors of these sizes in one allocation, each at an aligned address, as PyTorch's allocator places them.
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

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const std::string& name, std::size_t bytes, int rounds, const std::function<void()>& ours,
             const std::function<void()>& theirs) {
  std::vector<double> ours_s, theirs_s;
  ours();
  theirs();
  for (int round = 0; round < rounds; ++round) {
    ours_s.push_back(seconds(ours));
    theirs_s.push_back(seconds(theirs));
  }
  const double ours_rate = 1e-9 * static_cast<double>(bytes) / median(ours_s);
  const double theirs_rate = 1e-9 * static_cast<double>(bytes) / median(theirs_s);
  std::printf("ratio: %s = %.3f (ours %.2f, theirs %.2f, GB/s)\n", name.c_str(), ours_rate / theirs_rate, ours_rate,
              theirs_rate);
}

void measure(const std::string& name, const std::vector<std::size_t>& sizes, int rounds) {
  const Context context(0);
  const ContextScope scope(context);
  const Tensors tensors(sizes);
  const Plan& plan = tensors.plan();
  const Plan nothing({});
  Slot slot(plan);
  CudaDevice device(0, staging_bytes);
  device.attach({slot.range(), slot.digests()});
  require(!device.broken(), device.failure().c_str());
  const BackgroundStream stream;
  const Event done;
  const auto wait = [&] {
    done.record(stream);
    while (!done.reached()) {
    }
  };
  const std::size_t bytes = plan.length_bytes();
  std::binary_semaphore captured(0);
  const auto capture = [&] {
    const Device::Copy copy{&plan, slot.packed()};
    bool is_whole = false;
    device.start({&copy, 1}, {&nothing, {}}, nullptr);
    const bool released = device.release({}, Deadline::in_ms(60'000), [&](bool whole) {
      is_whole = whole;
      captured.release();
    });
    require(released, "a capture failed");
    captured.acquire();
    require(is_whole, "a capture failed");
  };
  compare("gpu_capture_" + name, bytes, rounds, capture, [&] {
    CKPT_CUDA(cuMemcpyDtoHAsync_v2, slot.data(), tensors.pointer(), bytes, stream);
    wait();
  });
  capture();  // the slot holds the piece again
  compare(
      "gpu_restore_" + name, bytes, rounds,
      [&] {
        require(!device.load(plan, {slot.data(), slot.packed().digests}, nullptr), "a leaf does not match");
      },
      [&] {
        CKPT_CUDA(cuMemcpyHtoDAsync_v2, tensors.pointer(), slot.data(), bytes, stream);
        wait();
      });
}

std::vector<std::size_t> gpt2_sizes(std::size_t total_bytes) {
  std::vector<std::size_t> sizes;
  for (const auto& tensor : bench::gpt2(total_bytes)) sizes.push_back(bench::bytes_of(tensor));
  return sizes;
}

// A rank that sends packed tensors to itself, through these sub-buffers.
class Loop {
 public:
  Loop(const Tensors& tensors, Slot& slot, std::uint32_t buffers, std::uint64_t chunk_bytes)
      : length_bytes_(tensors.plan().length_bytes()),
        plan_({{length_bytes_}, 2 * buffers * chunk_bytes, buffers, kernels::leaf_size_bytes}),
        pinned_(slot.range().data, slot.range().size_bytes, CU_MEMHOSTREGISTER_PORTABLE),
        to_(slot.data()),
        exchange_(std::make_unique<NcclComm>(NcclComm::new_id(), 1, 0), {.reserved_bytes = 2 * buffers * chunk_bytes}) {
    const Plan* const plans[] = {&tensors.plan()};
    table_.assign(plans, CudaTable::Images::copied);
    table_.upload(stream_);
    const Event uploaded;
    uploaded.record(stream_);
    const Deadline deadline = Deadline::in_ms(60'000);
    while (!uploaded.reached() || !exchange_.meet()) require(!deadline.passed(), "NCCL does not begin");
  }
  void run() {
    const auto fill = [this](std::uint64_t first_byte, std::uint64_t size_bytes, CUdeviceptr to, CUstream stream) {
      kernels_.pack(table_.job(0, first_byte, size_bytes, to), stream);
    };
    exchange_.begin(plan_, fill, {to_});
    exchange_.allow(plan_.steps());
    while (!exchange_.over()) exchange_.advance();
  }
  double rate(int rounds) {
    std::vector<double> times_s;
    run();
    for (int round = 0; round < rounds; ++round) times_s.push_back(seconds([this] { run(); }));
    return 1e-9 * static_cast<double>(length_bytes_) / median(times_s);
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
  try {
    nccl_library();
  } catch (const Failure& failure) {
    std::printf("the device path is not measured: %s\n", failure.what());
    return;
  }
  constexpr std::uint64_t mebibyte = 1 << 20;
  const Context context(0);
  const ContextScope scope(context);
  const Tensors tensors({total_bytes / 4});  // many steps all the same
  Slot slot(tensors.plan());
  for (const std::uint64_t chunk_bytes : {4 * mebibyte, 32 * mebibyte})
    for (const std::uint32_t buffers : {1u, 2u, 4u})
      std::printf("exchange: %u sub-buffers of %llu MiB: %.2f GB/s\n", buffers,
                  static_cast<unsigned long long>(chunk_bytes / mebibyte),
                  Loop(tensors, slot, buffers, chunk_bytes).rate(rounds));
  Slot other(tensors.plan());
  Loop pipelined(tensors, slot, 4, 16 * mebibyte), unpipelined(tensors, other, 1, 16 * mebibyte);
  compare(
      "gpu_exchange_pipelined", tensors.plan().length_bytes(), rounds, [&] { pipelined.run(); },
      [&] { unpipelined.run(); });
}

}  // namespace

int main(int count, char** arguments) {
  const std::size_t total_bytes = static_cast<std::size_t>(count > 1 ? std::atoi(arguments[1]) : 1024) << 20;
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 15;
  const std::string part = count > 3 ? arguments[3] : "";
  try {
    cuda_driver();
    const Context context(0);
  } catch (const Failure& failure) {
    std::printf("no GPU here, nothing is measured: a tensor %s\n", failure.what());
    return 0;
  }
  try {
    if (part != "exchange") {
      measure("big", {total_bytes}, rounds);
      measure("gpt2", gpt2_sizes(total_bytes), rounds);
    }
    if (part != "copy") measure_exchange(total_bytes, rounds);
  } catch (const Failure& failure) {
    require(false, failure.what());
  }
  return 0;
}
