// CudaKernels launches the GPU code of kernels/capture_kernels.cu. It is loaded into one context, and must be used with
// that context current. A launch does not wait for the GPU, allocate or copy. It throws Failure.
#pragma once

#include <cstdint>

#include "device/cuda_driver.hpp"
#include "kernels/encode_body.hpp"

namespace ckpt::device {

class CudaKernels {
 public:
  CudaKernels();
  ~CudaKernels() { cuda_driver().cuModuleUnload(module_); }
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  // Packs or unpacks a range of a piece. Writes one digest for each leaf of the range to `digests`, unless that is 0.
  // The range begins where a leaf begins. pack() also takes a range without packed bytes: it makes digests alone.
  void pack(const kernels::device::SegmentsJob& range, CUdeviceptr digests, CUstream stream) const;
  void unpack(const kernels::device::SegmentsJob& range, CUdeviceptr digests, CUstream stream) const;

  // Makes `leaves` leaves of parity, and digests them and what they are made from. Sets the keys of the job.
  void encode(kernels::device::EncodeJob job, std::uint64_t leaves, CUstream stream) const;

 private:
  CUmodule module_ = nullptr;
  CUfunction pack_ = nullptr, unpack_ = nullptr, encode_plain_ = nullptr, encode_any_ = nullptr;
};

}  // namespace ckpt::device
