// CudaTable tells the GPU's kernels where the tensors of a capture or a restore are. It has one table for each plan
// (device.hpp). The tables are made anew each time, because that costs less than to check whether a tensor has moved.
//
// The GPU does not access tensors in host memory. Instead, each has an image: a copy in pinned memory, which the GPU
// reads or writes. assign() fills the images of a capture. So these tensors are captured when assign() returns.
//
// One thread at a time may use it, with the context current.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/cuda_handles.hpp"
#include "device/device.hpp"
#include "kernels/segments_body.hpp"

namespace ckpt::device {

// True if a tensor of a plan is in device memory, and large enough to be worth a copy of its own.
inline bool is_direct(const Plan& plan, std::size_t tensor, std::size_t direct_min_bytes) {
  return plan.memories()[tensor] == CKPT_DEVICE && plan.targets()[tensor].size_bytes >= direct_min_bytes;
}

class CudaTable {
 public:
  enum class Images { copied, blank };

  // Makes the tables of these plans. For a capture, `images` is `copied`; for a restore, `blank`. The GPU must have
  // finished with the previous tables. If these are larger than all before, allocates larger memory, and adds the
  // memory that it replaces to `retired`. Tensors in device memory of at least `direct_min_bytes` are marked as direct.
  void assign(std::span<const Plan* const> plans, Images images, RetiredMemory& retired,
              std::size_t direct_min_bytes = SIZE_MAX);
  // Makes the tables large enough for these plans, so that assign() allocates nothing. Memory of tables that became too
  // small goes to `retired`: the GPU may still read it.
  void reserve(std::span<const Plan* const> plans, RetiredMemory& retired);
  // Copies the tables to the GPU, on this stream.
  void upload(CUstream stream) const;
  // Returns a job for `length_bytes` packed bytes of plan number `plan`, from `first_byte` on. They lie at `packed`, or
  // nowhere if that is 0. `skips_direct`: leaves that lie in one direct tensor are not packed.
  kernels::device::SegmentsJob job(std::size_t plan, std::uint64_t first_byte, std::uint64_t length_bytes,
                                   CUdeviceptr packed, bool skips_direct = false) const;
  // After a restore: copies the images into the tensors in host memory.
  void write_back() const;

 private:
  struct Image {
    std::byte* tensor;
    std::size_t size_bytes;
    std::size_t offset_bytes;
  };
  void add(const Plan& plan, std::size_t direct_min_bytes);
  void place_images(Images images, RetiredMemory& retired);
  void stage(RetiredMemory& retired);

  std::vector<kernels::device::DeviceSegment> entries_;
  std::vector<std::size_t> first_entries_;  // by plan: its first entry in entries_. At the end: the number of entries
  std::vector<Image> images_;
  std::vector<std::size_t> imaged_;  // the entry of each image
  std::size_t image_bytes_ = 0;
  PinnedMemory image_memory_, staged_;
  DeviceMemory on_device_;
};

}  // namespace ckpt::device
