// Parity on a GPU, checked against the coder on the CPU, then measured in turns with copies: XOR against a copy within
// the device, in bytes read and written; Reed-Solomon likewise; encoding against copying its sources to pinned host
// memory. Says so, and measures nothing, where there is no GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/digest_cuda.hpp"
#include "kernels/parity_cuda.hpp"

namespace {

using namespace ckpt::kernels;

constexpr std::size_t piece_bytes = std::size_t{256} << 20;

void check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "bench_parity_cuda: %s: %s\n", what, cudaGetErrorString(result));
  std::exit(1);
}

std::byte* device_memory(std::size_t size_bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, size_bytes), "cudaMalloc");
  return static_cast<std::byte*>(memory);
}

double time_ms(cudaStream_t stream, const std::function<void()>& work) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "cudaEventCreate");
  check(cudaEventCreate(&end), "cudaEventCreate");
  check(cudaEventRecord(begin, stream), "cudaEventRecord");
  work();
  check(cudaEventRecord(end, stream), "cudaEventRecord");
  check(cudaEventSynchronize(end), "cudaEventSynchronize");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return ms;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const std::string& name, cudaStream_t stream, double ours_bytes, const std::function<void()>& ours,
             double theirs_bytes, const std::function<void()>& theirs) {
  std::vector<double> ours_ms, theirs_ms;
  ours();
  theirs();
  for (int round = 0; round < 15; ++round) {
    ours_ms.push_back(time_ms(stream, ours));
    theirs_ms.push_back(time_ms(stream, theirs));
  }
  const double ours_rate = ours_bytes / median(ours_ms) / 1e6, theirs_rate = theirs_bytes / median(theirs_ms) / 1e6;
  std::printf("ratio: %s = %.2f (ours %.1f, theirs %.1f, GB/s)\n", name.c_str(), ours_rate / theirs_rate, ours_rate,
              theirs_rate);
}

// Small pieces of odd lengths and alignments: the same bytes as on the CPU.
void check_bytes(std::size_t data, std::size_t parity, cudaStream_t stream) {
  std::mt19937_64 random(data * 10 + parity);
  const Matrix matrix = ErasureCode(data, parity).encoder();
  const std::size_t length = 100000 + random() % 1000;
  std::byte* memory = device_memory((data + parity) * (length + 64));
  std::vector<std::vector<std::byte>> pieces, expected(parity, std::vector<std::byte>(length));
  std::vector<Source> on_host, on_device;
  std::vector<Output> made, wanted;
  for (std::size_t i = 0; i < data + parity; ++i) {
    std::byte* at = memory + i * (length + 64) + random() % 16;
    if (i < data) {
      auto& piece = pieces.emplace_back(length - random() % 50000);
      for (std::byte& byte : piece) byte = static_cast<std::byte>(random());
      check(cudaMemcpyAsync(at, piece.data(), piece.size(), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
      on_device.push_back({at, piece.size()});
    } else {
      made.push_back({at, nullptr});
      wanted.push_back({expected[i - data].data(), nullptr});
    }
  }
  for (const auto& piece : pieces) on_host.push_back({piece.data(), piece.size()});
  check(device::combine(matrix, on_device, made, length, stream), "combine");
  Coder(matrix).combine(on_host, wanted, length);
  std::vector<std::byte> found(length);
  for (std::size_t row = 0; row < parity; ++row) {
    check(cudaMemcpyAsync(found.data(), made[row].data, length, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    if (std::memcmp(found.data(), expected[row].data(), length) != 0) {
      std::fprintf(stderr, "bench_parity_cuda: row %zu of rs(%zu,%zu) differs from the CPU's\n", row, data + parity,
                   parity);
      std::exit(1);
    }
  }
  check(cudaFree(memory), "cudaFree");
}

void check_digests(std::size_t length, std::size_t shift, cudaStream_t stream) {
  std::mt19937_64 random(length);
  std::vector<std::byte> bytes(length);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  std::vector<std::uint64_t> expected(leaf_count(length)), found(leaf_count(length));
  ckpt::kernels::digest_leaves(bytes.data(), length, expected.data());
  std::byte* memory = device_memory(length + shift);
  auto* digests = reinterpret_cast<std::uint64_t*>(device_memory(8 * found.size()));
  check(cudaMemcpyAsync(memory + shift, bytes.data(), length, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
  check(device::digest_leaves(memory + shift, length, digests, stream), "digest_leaves");
  check(cudaMemcpyAsync(found.data(), digests, 8 * found.size(), cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  if (found != expected) {
    std::fprintf(stderr, "bench_parity_cuda: digests of %zu bytes differ from the CPU's\n", length);
    std::exit(1);
  }
  check(cudaFree(memory), "cudaFree");
  check(cudaFree(digests), "cudaFree");
}

void measure_digests(cudaStream_t stream) {
  std::byte* data = device_memory(piece_bytes);
  std::byte* copied = device_memory(piece_bytes);
  auto* digests = reinterpret_cast<std::uint64_t*>(device_memory(8 * leaf_count(piece_bytes)));
  const auto bytes = static_cast<double>(piece_bytes);
  compare(
      "digest_gpu", stream, bytes,
      [&] { check(device::digest_leaves(data, piece_bytes, digests, stream), "digest_leaves"); }, 2 * bytes,
      [&] { check(cudaMemcpyAsync(copied, data, piece_bytes, cudaMemcpyDeviceToDevice, stream), "copy"); });
  check(cudaFree(data), "cudaFree");
  check(cudaFree(copied), "cudaFree");
  check(cudaFree(digests), "cudaFree");
}

void measure(std::size_t data, std::size_t parity, cudaStream_t stream) {
  const Matrix matrix = ErasureCode(data, parity).encoder();
  std::vector<Source> sources;
  std::vector<Output> outputs;
  for (std::size_t i = 0; i < data; ++i) sources.push_back({device_memory(piece_bytes), piece_bytes});
  for (std::size_t row = 0; row < parity; ++row) outputs.push_back({device_memory(piece_bytes), nullptr});
  std::byte* copied = device_memory(piece_bytes);
  void* host = nullptr;
  check(cudaMallocHost(&host, piece_bytes), "cudaMallocHost");

  const std::string suffix = "_k" + std::to_string(data) + (parity > 1 ? "_p" + std::to_string(parity) : "");
  const auto encode = [&] { check(device::combine(matrix, sources, outputs, piece_bytes, stream), "combine"); };
  const auto copy = [&] {
    check(cudaMemcpyAsync(copied, sources[0].data, piece_bytes, cudaMemcpyDeviceToDevice, stream), "copy");
  };
  const auto to_host = [&] {
    check(cudaMemcpyAsync(host, sources[0].data, piece_bytes, cudaMemcpyDeviceToHost, stream), "copy");
  };
  const auto bytes = static_cast<double>(piece_bytes);
  compare((parity == 1 ? "xor_gpu" : "rs_gpu") + suffix, stream, static_cast<double>(data + parity) * bytes, encode,
          2 * bytes, copy);
  compare("encode_gpu_vs_copy_to_host" + suffix, stream, static_cast<double>(data) * bytes, encode, bytes, to_host);

  check(cudaFreeHost(host), "cudaFreeHost");
  check(cudaFree(copied), "cudaFree");
  for (const Source& source : sources) check(cudaFree(const_cast<std::byte*>(source.data)), "cudaFree");
  for (const Output& output : outputs) check(cudaFree(output.data), "cudaFree");
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::puts("there is no GPU here: nothing measured");
    return 0;
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  std::printf("%s\n", properties.name);
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  for (const std::size_t parity : {1, 2, 3, 4}) {
    for (const std::size_t data : {1, 3, 7, 60}) check_bytes(data, parity, stream);
  }
  for (const std::size_t length : {1, 200, 300, 1000000}) {
    for (const std::size_t shift : {0, 8, 5}) check_digests(length, shift, stream);
  }
  for (const std::size_t data : {3, 7}) measure(data, 1, stream);
  for (const std::size_t parity : {2, 4}) measure(6, parity, stream);
  measure_digests(stream);
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}
