// Tensors in device memory for tests, and the kernels that pack them into a piece.
#pragma once

#include <memory>
#include <vector>

#include "device/cuda_kernels.hpp"
#include "device/cuda_table.hpp"
#include "gpu.hpp"
#include "gpu_replication/cuda_exchange.hpp"
#include "kernels/digest.hpp"

namespace ckpt::testing_support {

inline constexpr std::uint64_t leaf_bytes = kernels::leaf_size_bytes;

// A piece as several tensors in device memory. fill() packs it.
class PackedTensors {
 public:
  explicit PackedTensors(const std::vector<std::vector<std::byte>>& tensors) {
    std::vector<device::Plan::Region> regions;
    for (const auto& bytes : tensors) {
      memory_.push_back(std::make_unique<GpuBytes>(bytes));
      regions.push_back({static_cast<std::byte*>(memory_.back()->data()), bytes.size(), CKPT_DEVICE});
      bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    }
    plan_ = std::make_unique<device::Plan>(regions);
    const device::Plan* const plans[] = {plan_.get()};
    table_.assign(plans, device::CudaTable::Images::copied, retired_);
    table_.upload(nullptr);
    EXPECT_CUDA(cuStreamSynchronize(nullptr));
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  device::CudaExchange::Fill fill() const {
    return [this](const device::CudaExchange::Chunk& chunk, CUstream stream) {
      kernels_.pack(table_.job(0, chunk.first_byte, chunk.size_bytes, chunk.to), 0, stream);
      chunk.filled.record(stream);
      return device::CudaExchange::Filling::begun;
    };
  }

 private:
  std::vector<std::unique_ptr<GpuBytes>> memory_;
  std::vector<std::byte> bytes_;
  std::unique_ptr<device::Plan> plan_;
  device::RetiredMemory retired_;  // of the first table: nothing
  device::CudaTable table_;
  device::CudaKernels kernels_;
};

// As a training state is: large and small, whole leaves and odd ends.
inline std::vector<std::vector<std::byte>> tensors(std::uint64_t seed, std::size_t leaves) {
  return {bytes_of(leaves * leaf_bytes + 12, seed), bytes_of(3, seed + 1), bytes_of(2 * leaf_bytes - 5, seed + 2)};
}

// Keeps an object of a context that has died. Nobody can free it.
template <class Lost>
void keep_for_good(Lost lost) {
  static auto* const all = new std::vector<Lost>;
  all->push_back(std::move(lost));
}

}  // namespace ckpt::testing_support
