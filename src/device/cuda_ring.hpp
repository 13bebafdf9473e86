// Sub-buffers in device memory that pieces pass through on their way between tensors and the host, in turn.
//
// Used with the context current.
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
  // Takes up to `size_bytes` of device memory, less where there is less. Throws Failure where there is next to none.
  explicit CudaRing(std::uint64_t size_bytes);

  SubBuffer& operator[](std::uint64_t number) { return buffers_[number % buffers_.size()]; }
  std::size_t count() const { return buffers_.size(); }
  // Of each sub-buffer.
  std::size_t leaves() const { return leaves_; }
  std::size_t chunk_bytes() const { return leaves_ * kernels::leaf_size_bytes; }
  std::uint64_t size_bytes() const { return count() * chunk_bytes(); }
  // Whether there was less memory.
  bool is_short() const { return is_short_; }

 private:
  bool allocate(std::uint64_t size_bytes);

  bool is_short_ = false;
  std::size_t leaves_ = 0;
  DeviceMemory memory_;
  std::vector<SubBuffer> buffers_;
};

}  // namespace ckpt::device
