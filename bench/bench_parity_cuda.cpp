// Checks and measures parity and digests on a GPU. First it compares their bytes with the CPU's. Then it compares their
// rates with those of copies:
// - XOR and Reed-Solomon: a copy within the device, by bytes read and written
// - encoding: a copy of its sources to pinned host memory
// - a row of parity as jobs make it, with the digests of all sources: a copy within the device, by bytes read and
// written
// - digests alone, and packing (a copy with digests): a copy within the device. Both in launches of a sub-buffer's
//   size and in large ones
//
// If there is no GPU that this build can use, the bench says so and ends with status 3.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/comparison.hpp"
#include "bench/parts.hpp"
#include "kernels/digest_cuda.hpp"
#include "kernels/encode_cuda.hpp"
#include "kernels/parity_cuda.hpp"

namespace {

using namespace ckpt::kernels;
using Work = std::function<void()>;

constexpr std::size_t mebibyte = std::size_t{1} << 20;
constexpr std::size_t piece_bytes = 256 * mebibyte;      // much larger than any cache
constexpr std::size_t sub_buffer_bytes = 32 * mebibyte;  // as in the engine's staging pipeline
constexpr int rounds = 15, calls_per_round = 16;

void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(result));
}

struct FreeDevice {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
using DeviceMemory = std::unique_ptr<std::byte, FreeDevice>;
DeviceMemory device_memory(std::size_t size_bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, std::max<std::size_t>(size_bytes, 1)), "cudaMalloc");
  return DeviceMemory(static_cast<std::byte*>(memory));
}

struct FreePinned {
  void operator()(std::byte* memory) const { cudaFreeHost(memory); }
};
using PinnedMemory = std::unique_ptr<std::byte, FreePinned>;
PinnedMemory pinned_memory(std::size_t size_bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, size_bytes), "cudaMallocHost");
  return PinnedMemory(static_cast<std::byte*>(memory));
}

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT: it is one

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  double wait_ms_since(const Event& begin) {
    float ms = 0;
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&ms, begin.event_, event_), "cudaEventElapsedTime");
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

void copy(void* to, const void* from, std::size_t size_bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (size_bytes != 0) check(cudaMemcpyAsync(to, from, size_bytes, kind, stream), "cudaMemcpyAsync");
}

std::vector<std::byte> random_bytes(std::size_t size_bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size_bytes);
  for (std::size_t at = 0; at < size_bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), size_bytes - at));
  }
  return bytes;
}

// ---- Bytes ----

constexpr std::size_t guard_bytes = 32;  // before and after an output
constexpr std::byte guard{0xA5};

// A source at the end of its device memory, so that a memory checker notices reads beyond it.
struct CheckedSource {
  CheckedSource(std::size_t size_bytes, std::size_t shift, std::uint64_t seed, cudaStream_t stream)
      : bytes(random_bytes(size_bytes, seed)), memory(device_memory(shift + size_bytes)), data(memory.get() + shift) {
    copy(data, bytes.data(), size_bytes, cudaMemcpyHostToDevice, stream);
  }
  const std::vector<std::byte> bytes;
  const DeviceMemory memory;
  std::byte* const data;
};

// An output with guards before and after it, and the bytes that all of it must have.
struct CheckedOutput {
  CheckedOutput(std::size_t length_bytes, std::size_t shift, cudaStream_t stream)
      : expected(shift + length_bytes + 2 * guard_bytes, guard),
        offset(shift + guard_bytes),
        memory(device_memory(expected.size())) {
    check(cudaMemsetAsync(memory.get(), static_cast<int>(guard), expected.size(), stream), "cudaMemsetAsync");
  }
  bool is_as_expected(cudaStream_t stream) const {
    std::vector<std::byte> found(expected.size());
    copy(found.data(), memory.get(), found.size(), cudaMemcpyDeviceToHost, stream);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return found == expected;
  }
  std::vector<std::byte> expected;
  const std::size_t offset;
  const DeviceMemory memory;
};

// Uses sources of different lengths and alignments.
void check_encoding(std::size_t data, std::size_t parity, std::size_t length_bytes, cudaStream_t stream) {
  std::mt19937_64 random(data * 10 + parity + length_bytes);
  const Matrix matrix = ErasureCode(data, parity).encoder();
  std::deque<CheckedSource> sources;
  std::deque<CheckedOutput> outputs;
  std::vector<Source> on_host, on_device;
  std::vector<Output> wanted, made;
  for (std::size_t i = 0; i < data; ++i) {
    const std::size_t size_bytes = i == 0 ? length_bytes : random() % (length_bytes + 1);
    const auto& source = sources.emplace_back(size_bytes, random() % 16, random(), stream);
    on_host.push_back({source.bytes.data(), size_bytes});
    on_device.push_back({source.data, size_bytes});
  }
  for (std::size_t row = 0; row < parity; ++row) {
    auto& output = outputs.emplace_back(length_bytes, random() % 16, stream);
    wanted.push_back({output.expected.data() + output.offset, nullptr});
    made.push_back({output.memory.get() + output.offset, nullptr});
  }
  Coder(matrix).combine(on_host, wanted, length_bytes);
  check(device::combine(matrix, on_device, made, length_bytes, stream), "combine");
  for (std::size_t row = 0; row < parity; ++row)
    if (!outputs[row].is_as_expected(stream))
      throw std::runtime_error("row " + std::to_string(row) + " of " + std::to_string(parity) + " of " +
                               std::to_string(data) + " sources with " + std::to_string(length_bytes) +
                               " bytes differs from the CPU's");
}

void check_encoding(std::initializer_list<std::size_t> numbers_of_data, std::initializer_list<std::size_t> parities,
                    cudaStream_t stream) {
  for (const std::size_t data : numbers_of_data)
    for (const std::size_t parity : parities)
      for (const std::size_t length_bytes : {1, 15, 16, 17, 4097, 65536, 100003})
        check_encoding(data, parity, length_bytes, stream);
}

void check_digests(std::size_t length_bytes, std::size_t shift, cudaStream_t stream) {
  const CheckedSource source(length_bytes, shift, length_bytes, stream);
  std::vector<std::uint64_t> expected(leaf_count(length_bytes)), found(expected.size());
  digest_leaves(source.bytes.data(), length_bytes, expected.data());
  const std::size_t digests_bytes = expected.size() * sizeof(expected[0]);
  const DeviceMemory digests = device_memory(digests_bytes), copied = device_memory(length_bytes);
  for (std::byte* const to : {static_cast<std::byte*>(nullptr), copied.get()}) {
    check(device::digest_leaves(source.data, length_bytes, reinterpret_cast<std::uint64_t*>(digests.get()), stream, to),
          "digest_leaves");
    copy(found.data(), digests.get(), digests_bytes, cudaMemcpyDeviceToHost, stream);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (found != expected)
      throw std::runtime_error("digests of " + std::to_string(length_bytes) + " bytes differ from the CPU's");
  }
  std::vector<std::byte> packed(length_bytes);
  copy(packed.data(), copied.get(), length_bytes, cudaMemcpyDeviceToHost, stream);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  if (packed != source.bytes)
    throw std::runtime_error("the copy of " + std::to_string(length_bytes) + " bytes differs from them");
}

void check_all_digests(cudaStream_t stream) {
  for (const std::size_t length_bytes :
       {1, 3, 8, 16, 17, 128, 129, 200, 240, 241, 300, 1024, 65535, 65536, 65537, 1000000})
    for (const std::size_t shift : {0, 8, 5}) check_digests(length_bytes, shift, stream);
}

// ---- Rates ----

// Returns the time of one call, from many in a row. The stream is already busy when the time begins, so the time does
// not include the wait for a launch.
double seconds_per_call(cudaStream_t stream, const Work& work) {
  Event begin, end;
  work();
  begin.record(stream);
  for (int call = 0; call < calls_per_round; ++call) work();
  end.record(stream);
  return 1e-3 * end.wait_ms_since(begin) / calls_per_round;
}

void compare(const std::string& name, cudaStream_t stream, std::size_t ours_bytes, const Work& ours,
             std::size_t theirs_bytes, const Work& theirs) {
  const auto side = [stream](const char* label, std::size_t bytes, const Work& work) {
    return ckpt::bench::Side{label, bytes,
                             [stream, &work](benchmark::UserCounters&) { return seconds_per_call(stream, work); }};
  };
  const auto found =
      ckpt::bench::measure(name, {side("ours", ours_bytes, ours), side("copy", theirs_bytes, theirs)}, rounds);
  ckpt::bench::print_ratio(
      ckpt::bench::ratio_of_rates(name, ckpt::bench::gigabytes_per_second(ours_bytes, found[0].seconds),
                                  ckpt::bench::gigabytes_per_second(theirs_bytes, found[1].seconds)));
}

// Random bytes, piece_bytes of them. Each number gives other bytes.
DeviceMemory random_piece(std::size_t number, cudaStream_t stream) {
  constexpr std::size_t distance_bytes = 4096;
  static const auto bytes = random_bytes(piece_bytes + max_stripe_pieces * distance_bytes, 1);
  DeviceMemory piece = device_memory(piece_bytes);
  copy(piece.get(), bytes.data() + number * distance_bytes, piece_bytes, cudaMemcpyHostToDevice, stream);
  return piece;
}

// Digests a piece in launches of `launch_bytes`. With `packs`, copies it, too.
void measure_digests(const std::string& name, std::size_t launch_bytes, bool packs, cudaStream_t stream) {
  const DeviceMemory piece = random_piece(0, stream), copied = device_memory(piece_bytes);
  const DeviceMemory digests = device_memory(leaf_count(piece_bytes) * sizeof(std::uint64_t));
  const auto in_turn = [launch_bytes](const std::function<void(std::size_t)>& launch) {
    return [launch, launch_bytes, at = std::size_t{0}]() mutable {
      launch(at);
      at = (at + launch_bytes) % piece_bytes;
    };
  };
  const auto digest = [&](std::size_t at) {
    auto* const to = reinterpret_cast<std::uint64_t*>(digests.get()) + at / leaf_size_bytes;
    void* const copy_to = packs ? copied.get() + at : nullptr;
    check(device::digest_leaves(piece.get() + at, launch_bytes, to, stream, copy_to), "digest_leaves");
  };
  const auto copy_within = [&](std::size_t at) {
    copy(copied.get() + at, piece.get() + at, launch_bytes, cudaMemcpyDeviceToDevice, stream);
  };
  compare(name, stream, (packs ? 2 : 1) * launch_bytes, in_turn(digest), 2 * launch_bytes, in_turn(copy_within));
}

bool has_room(const std::string& name, std::size_t needed_bytes) {
  std::size_t free_bytes = 0, total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
  if (needed_bytes <= free_bytes) return true;
  std::printf("%s is not measured: it needs %.1f GB of device memory, and %.1f are free\n", name.c_str(),
              1e-9 * static_cast<double>(needed_bytes), 1e-9 * static_cast<double>(free_bytes));
  return false;
}

void measure_encoding(std::size_t data, std::size_t parity, cudaStream_t stream) {
  const std::string suffix = "_k" + std::to_string(data) + (parity > 1 ? "_p" + std::to_string(parity) : "");
  const std::string name = (parity == 1 ? "xor_gpu" : "rs_gpu") + suffix;
  if (!has_room(name, (data + parity + 2) * piece_bytes)) return;  // one more for the copy's target, and one to spare

  const Matrix matrix = ErasureCode(data, parity).encoder();
  std::vector<DeviceMemory> pieces;
  std::vector<Source> sources;
  std::vector<Output> outputs;
  for (std::size_t i = 0; i < data; ++i)
    sources.push_back({pieces.emplace_back(random_piece(i, stream)).get(), piece_bytes});
  for (std::size_t row = 0; row < parity; ++row)
    outputs.push_back({pieces.emplace_back(device_memory(piece_bytes)).get(), nullptr});
  const DeviceMemory copied = device_memory(piece_bytes);
  const PinnedMemory host = pinned_memory(piece_bytes);

  const auto encode = [&] { check(device::combine(matrix, sources, outputs, piece_bytes, stream), "combine"); };
  const auto copy_within = [&] { copy(copied.get(), sources[0].data, piece_bytes, cudaMemcpyDeviceToDevice, stream); };
  const auto copy_to_host = [&] { copy(host.get(), sources[0].data, piece_bytes, cudaMemcpyDeviceToHost, stream); };
  compare(name, stream, (data + parity) * piece_bytes, encode, 2 * piece_bytes, copy_within);
  compare("encode_gpu_vs_copy_to_host" + suffix, stream, data * piece_bytes, encode, piece_bytes, copy_to_host);
}

// One row of parity, with the proof of what it was made from.
void measure_proved(std::size_t data, std::size_t row, cudaStream_t stream) {
  const std::string name = (row == 0 ? "xor" : "rs") + std::string("_with_digests_gpu_k") + std::to_string(data);
  if (!has_room(name, (data + 3) * piece_bytes)) return;
  std::vector<DeviceMemory> pieces;
  device::EncodeJob job{};
  for (std::size_t i = 0; i < data; ++i) {
    pieces.push_back(random_piece(i, stream));
    job.sources[i] = {reinterpret_cast<const unsigned char*>(pieces.back().get()), piece_bytes};
    job.coefficients[i] = ErasureCode::coefficient(row, i);
  }
  job.source_count = static_cast<std::uint32_t>(data);
  const DeviceMemory parity = device_memory(piece_bytes);
  const DeviceMemory digests = device_memory(leaf_count(piece_bytes) * (data + 1) * sizeof(std::uint64_t));
  job.parity = reinterpret_cast<unsigned char*>(parity.get());
  job.digests = reinterpret_cast<std::uint64_t*>(digests.get());
  const auto encode = [&] { check(device::encode(job, row == 0, leaf_count(piece_bytes), stream), "encode"); };
  const auto copy_within = [&] { copy(parity.get(), pieces[0].get(), piece_bytes, cudaMemcpyDeviceToDevice, stream); };
  compare(name, stream, (data + 1) * piece_bytes, encode, 2 * piece_bytes, copy_within);
}

// ---- All of it ----

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Says why nothing can run here. "" if it can.
std::string why_unusable() {
  int version = 0, devices = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return "there is no CUDA driver";
  if (version / 1000 < CUDART_VERSION / 1000)
    return "the CUDA driver is too old: it is for CUDA " + version_text(version) + ", and this was built with CUDA " +
           version_text(CUDART_VERSION) + "; update the driver";
  const cudaError_t result = cudaGetDeviceCount(&devices);
  if (result != cudaSuccess) return std::string("the CUDA driver does not start: ") + cudaGetErrorString(result);
  return devices == 0 ? "the CUDA driver knows no GPU" : "";
}

void say_where() {
  cudaDeviceProp properties;
  int version = 0;
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  std::printf("%s, driver for CUDA %s\n", properties.name, version_text(version).c_str());
}

void compare_with_cpu(ckpt::bench::Parts& parts, cudaStream_t stream) {
  parts.run("XOR's comparison with the CPU", [&] { check_encoding({1, 3, 7, 15, 31, 63}, {1}, stream); });
  parts.run("Reed-Solomon's comparison with the CPU", [&] { check_encoding({1, 3, 7, 31, 60}, {2, 3, 4}, stream); });
  parts.run("the digests' comparison with the CPU", [&] { check_all_digests(stream); });
  if (!parts.any_failed()) std::puts("XOR, Reed-Solomon and digests are the CPU's, byte by byte");
}

void measure(ckpt::bench::Parts& parts, cudaStream_t stream) {
  for (const std::size_t data : {3, 7, 15, 31, 63})
    parts.run("XOR of " + std::to_string(data), [&] { measure_encoding(data, 1, stream); });
  for (const std::size_t parity : {2, 4})
    parts.run("Reed-Solomon with " + std::to_string(parity) + " rows", [&] { measure_encoding(6, parity, stream); });
  for (const std::size_t data : {3, 7})
    for (const std::size_t row : {0, 1})
      parts.run("parity of " + std::to_string(data) + " with digests", [&] { measure_proved(data, row, stream); });
  for (const bool packs : {false, true}) {
    const std::string name = packs ? "pack_gpu" : "digest_gpu", what = packs ? "packing" : "digests";
    parts.run(what + " of pieces", [&] { measure_digests(name, piece_bytes, packs, stream); });
    parts.run(what + " of sub-buffers",
              [&] { measure_digests(name + "_sub_buffer", sub_buffer_bytes, packs, stream); });
  }
}

int run(bool is_check_only) {
  say_where();
  const Stream stream;
  ckpt::bench::Parts parts("bench_parity_cuda");
  compare_with_cpu(parts, stream);
  if (!is_check_only) measure(parts, stream);
  return parts.finish();
}

}  // namespace

int main(int count, char** arguments) {
  ckpt::bench::initialize(&count, arguments);
  CLI::App app("Parity and digest kernels on a GPU: their bytes against the CPU's, their rates against copies");
  bool is_check_only = false;
  app.add_flag("--check", is_check_only, "only compare bytes; status 1 where they differ, 3 without a GPU to use");
  CLI11_PARSE(app, count, arguments);
  if (const std::string why = why_unusable(); !why.empty()) {
    std::printf("nothing is measured: %s\n", why.c_str());
    return ckpt::bench::nothing_measured;
  }
  try {
    return run(is_check_only);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_parity_cuda: %s\n", error.what());
    return 1;
  }
}
