// CudaKernels launches the GPU code of kernels/capture_kernels.cu. It is loaded into one context, and must be used with
// that context current. A launch does not wait for the GPU, allocate or copy. It throws Failure.
#pragma once

#include <cstdint>

#include "device/cuda_driver.hpp"
#include "kernels/segments_body.hpp"

namespace ckpt::device {

class CudaKernels {
 public:
  CudaKernels();
  ~CudaKernels() { cuda_driver().cuModuleUnload(module_); }
  CudaKernels(const CudaKernels&) = delete;
  CudaKernels& operator=(const CudaKernels&) = delete;

  void pack(const kernels::device::SegmentsJob& job, CUstream stream) const;
  void unpack(const kernels::device::SegmentsJob& job, CUstream stream) const;
  // Computes one digest per leaf of `length_bytes` bytes at `data`. Both pointers are the device's.
  void digest(CUdeviceptr data, std::uint64_t length_bytes, CUdeviceptr digests, CUstream stream) const;

 private:
  CUmodule module_ = nullptr;
  CUfunction pack_ = nullptr, unpack_ = nullptr, digest_ = nullptr;
};

}  // namespace ckpt::device
