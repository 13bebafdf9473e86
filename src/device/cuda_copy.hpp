// Copies between the GPU and host memory that the engine has pinned, and within the GPU.
//
// To pin a very large range holds the driver's lock for seconds, or fails. The driver also refuses a copy that touches
// two registrations, which are ranges that were pinned separately. So each slot has registrations of its own, and both
// registrations and copies are cut at addresses that are multiples of pin_max_bytes. Call these functions with the
// context current. They throw Failure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cuda_handles.hpp"
#include "device/device.hpp"

namespace ckpt::device {

inline constexpr std::uint64_t pin_max_bytes = 256ull << 20;

// Ranges are cut into parts for pinning and copying. Returns the size of a range's first part.
inline std::size_t first_part_bytes(const void* data, std::size_t size_bytes) {
  return std::min<std::size_t>(size_bytes, pin_max_bytes - reinterpret_cast<std::uintptr_t>(data) % pin_max_bytes);
}

// Calls part(offset_bytes, size_bytes) for each part of the range.
template <class Part>
void cut_as_pinned(const void* data, std::size_t size_bytes, Part part) {
  for (std::size_t at = 0; at < size_bytes;) {
    const std::size_t part_bytes = first_part_bytes(static_cast<const std::byte*>(data) + at, size_bytes - at);
    part(at, part_bytes);
    at += part_bytes;
  }
}

// Pins a range, and adds its registrations to `pinned`.
inline void pin(std::vector<Registration>& pinned, const Range& range) {
  cut_as_pinned(range.data, range.size_bytes, [&](std::size_t at, std::size_t size_bytes) {
    pinned.emplace_back(range.data + at, size_bytes, CU_MEMHOSTREGISTER_PORTABLE);
  });
}

inline void copy_to_host(void* to, CUdeviceptr from, std::size_t size_bytes, CUstream stream) {
  cut_as_pinned(to, size_bytes, [&](std::size_t at, std::size_t part_bytes) {
    CKPT_CUDA(cuMemcpyDtoHAsync_v2, static_cast<std::byte*>(to) + at, from + at, part_bytes, stream);
  });
}

inline void copy_to_device(CUdeviceptr to, const void* from, std::size_t size_bytes, CUstream stream) {
  cut_as_pinned(from, size_bytes, [&](std::size_t at, std::size_t part_bytes) {
    CKPT_CUDA(cuMemcpyHtoDAsync_v2, to + at, static_cast<const std::byte*>(from) + at, part_bytes, stream);
  });
}

inline void copy_within(CUdeviceptr to, CUdeviceptr from, std::size_t size_bytes, CUstream stream) {
  CKPT_CUDA(cuMemcpyDtoDAsync_v2, to, from, size_bytes, stream);
}

}  // namespace ckpt::device
