// CudaRing is a ring of sub-buffers in device memory. Pieces pass through them on their way between tensors and host
// memory.
//
// Use it with the context current.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cuda_handles.hpp"
#include "kernels/digest.hpp"

namespace ckpt::device {

struct SubBuffer {
  CUdeviceptr data;
  CUdeviceptr digests;  // of the leaves in it
  Event filled;
  Event emptied;
};

class CudaRing {
 public:
  // Large compared to the cost of starting a copy, small compared to a GPU's memory.
  static constexpr std::uint64_t default_chunk_max_bytes = 32ull << 20;

  // Takes up to `size_bytes` of device memory, or less if less is free. Throws Failure if almost none is free.
  explicit CudaRing(std::uint64_t size_bytes, std::uint64_t chunk_max_bytes = default_chunk_max_bytes);

  SubBuffer& operator[](std::uint64_t number) { return buffers_[number % buffers_.size()]; }
  std::size_t count() const { return buffers_.size(); }
  // The size of each sub-buffer, in leaves.
  std::size_t leaves() const { return leaves_; }
  std::size_t chunk_bytes() const { return leaves_ * kernels::leaf_size_bytes; }
  std::uint64_t size_bytes() const { return count() * chunk_bytes(); }
  // True if less memory was free than asked for.
  bool is_short() const { return is_short_; }

 private:
  bool allocate(std::uint64_t size_bytes);

  const std::uint64_t chunk_max_bytes_;
  bool is_short_ = false;
  std::size_t leaves_ = 0;
  DeviceMemory memory_;
  std::vector<SubBuffer> buffers_;
};

}  // namespace ckpt::device
