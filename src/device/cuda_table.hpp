// CudaTable tells the GPU's kernels where the tensors of a capture or a restore are. It has one table for each plan
// (device.hpp). The tables are made anew each time, because that costs less than to check whether a tensor has moved.
//
// The GPU does not access tensors in host memory. Instead, each has an image: a copy in pinned memory, which the GPU
// reads or writes. assign() fills the images of a capture. So these tensors are captured when assign() returns.
//
// One thread at a time may use it, with the context current.
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

  // Makes the tables of these plans. For a capture, `images` is `copied`; for a restore, `blank`. The GPU must have
  // finished with the previous tables. Allocates if these are larger than all before, and adds what was too small to
  // `retired`.
  void assign(std::span<const Plan* const> plans, Images images, RetiredMemory& retired);
  // Allocates what assign() needs for these plans, and adds what was too small to `retired`.
  void reserve(std::span<const Plan* const> plans, RetiredMemory& retired);
  // Copies the tables to the GPU, on this stream.
  void upload(CUstream stream) const;
  // Returns a job for `length_bytes` packed bytes of plan number `plan`, from `first_byte` on. They lie at `packed`.
  kernels::device::SegmentsJob job(std::size_t plan, std::uint64_t first_byte, std::uint64_t length_bytes,
                                   CUdeviceptr packed) const;
  // After a restore: copies the images into the tensors in host memory.
  void write_back() const;

 private:
  struct Image {
    std::byte* tensor;
    std::size_t size_bytes;
    std::size_t offset_bytes;
  };
  void add(const Plan& plan);
  void place_images(Images images, RetiredMemory& retired);
  void stage(RetiredMemory& retired);

  std::vector<kernels::device::DeviceSegment> entries_;
  std::vector<std::size_t> first_entries_;  // of each plan, and the end
  std::vector<Image> images_;
  std::vector<std::size_t> imaged_;  // the entry of each image
  std::size_t image_bytes_ = 0;
  PinnedMemory image_memory_, staged_;
  DeviceMemory on_device_;
};

}  // namespace ckpt::device
