// The tables by which kernels find tensors: one for each plan of a capture or a restore, made anew for each, since that
// costs less than to know whether anything moved.
//
// Tensors in host memory are seen by the GPU as an image: pinned memory of ours with a copy of their bytes. So their
// bytes are captured when assign() returns, whatever their plan.
//
// Used by one thread at a time, with the context current.
#pragma once

#include <span>
#include <vector>

#include "device/cuda_handles.hpp"
#include "device/device.hpp"
#include "kernels/segments_body.hpp"

namespace ckpt::device {

class CudaTable {
 public:
  enum class Images { copied, blank };

  // The plans in order. What the GPU does with the tables before must be over. Allocates where these are larger than
  // any before.
  void assign(std::span<const Plan* const> plans, Images images);
  // Takes the tables to the GPU, on this stream.
  void upload(CUstream stream) const;
  // A job on `length_bytes` packed bytes of plan number `plan` from `first_byte` on, which lie at `packed`.
  kernels::device::SegmentsJob job(std::size_t plan, std::uint64_t first_byte, std::uint64_t length_bytes,
                                   CUdeviceptr packed) const;
  // From the images back into the host's tensors.
  void write_back() const;

 private:
  struct Image {
    std::byte* tensor;
    std::size_t size_bytes;
    std::size_t offset_bytes;
  };
  void add(const Plan& plan);
  void place_images(Images images);
  void stage();

  std::vector<kernels::device::DeviceSegment> entries_;
  std::vector<std::size_t> first_entries_;  // of each plan, and the end
  std::vector<Image> images_;
  std::vector<std::size_t> imaged_;  // the entry of each image
  std::size_t image_bytes_ = 0;
  PinnedMemory image_memory_, staged_;
  DeviceMemory on_device_;
};

}  // namespace ckpt::device
