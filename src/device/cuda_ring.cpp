#include "device/cuda_ring.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace ckpt::device {
namespace {

// One is packed while others are copied.
constexpr std::uint64_t buffers_wanted = 4, buffers_min = 2;

std::size_t leaves_of(std::uint64_t size_bytes, std::uint64_t chunk_max_bytes) {
  const std::uint64_t chunk_bytes = std::min(size_bytes / buffers_wanted, chunk_max_bytes);
  return std::max<std::size_t>(chunk_bytes / kernels::leaf_size_bytes, 1);
}

}  // namespace

bool CudaRing::allocate(std::uint64_t size_bytes) {
  leaves_ = leaves_of(size_bytes, chunk_max_bytes_);
  const std::size_t digests_bytes = leaves_ * sizeof(std::uint64_t);
  const std::size_t count = std::max(size_bytes / chunk_bytes(), buffers_min);
  CUdeviceptr pointer = 0;
  const std::size_t needed_bytes = count * (chunk_bytes() + digests_bytes);
  const CUresult result = cuda_driver().cuMemAlloc_v2(&pointer, needed_bytes);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
  check_cuda("cuMemAlloc_v2", result);
  memory_ = DeviceMemory::of(pointer, needed_bytes);
  const CUdeviceptr digests = pointer + count * chunk_bytes();
  for (std::size_t i = 0; i < count; ++i)
    buffers_.push_back({pointer + i * chunk_bytes(), digests + i * digests_bytes, Event(), Event()});
  return true;
}

CudaRing::CudaRing(std::uint64_t size_bytes, std::uint64_t chunk_max_bytes) : chunk_max_bytes_(chunk_max_bytes) {
  while (!allocate(size_bytes)) {
    if (size_bytes <= buffers_min * kernels::leaf_size_bytes)
      throw Failure(CKPT_ERR_NO_SPACE,
                    "is in device memory, but that GPU has no memory left for ckptengine; free some");
    size_bytes /= 2;
    is_short_ = true;
  }
}

}  // namespace ckpt::device
