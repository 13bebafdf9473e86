#include "device/cuda_kernels.hpp"

#include <algorithm>

#include "kernels/capture_kernels.hpp"
#include "kernels/launch.hpp"

namespace ckpt::device {
namespace {

using namespace kernels::device;

// Starts a block of threads for each leaf.
template <class Job>
void launch(CUfunction function, Job job, std::uint64_t leaves, CUstream stream) {
  if (leaves == 0) return;
  job.keys = make_digest_keys();
  void* arguments[] = {&job};
  CKPT_CUDA(cuLaunchKernel, function, static_cast<unsigned>(leaves), 1, 1, pack_threads_per_block, 1, 1, 0, stream,
            arguments, nullptr);
}

void launch(CUfunction function, const SegmentsJob& range, CUdeviceptr digests, CUstream stream) {
  launch(function, PackJob{range, reinterpret_cast<std::uint64_t*>(digests), {}},
         kernels::leaf_count(range.length_bytes), stream);
}

}  // namespace

CudaKernels::CudaKernels() {
  if (cuda_driver().cuModuleLoadData(&module_, capture_kernels_image) != CUDA_SUCCESS)
    CKPT_CUDA(cuModuleLoadData, &module_, capture_kernels_ptx);
  CKPT_CUDA(cuModuleGetFunction, &pack_, module_, "ckpt_pack");
  CKPT_CUDA(cuModuleGetFunction, &unpack_, module_, "ckpt_unpack");
  CKPT_CUDA(cuModuleGetFunction, &encode_plain_, module_, "ckpt_encode_plain");
  CKPT_CUDA(cuModuleGetFunction, &encode_any_, module_, "ckpt_encode_any");
}

void CudaKernels::pack(const SegmentsJob& range, CUdeviceptr digests, CUstream stream) const {
  launch(pack_, range, digests, stream);
}

void CudaKernels::unpack(const SegmentsJob& range, CUdeviceptr digests, CUstream stream) const {
  launch(unpack_, range, digests, stream);
}

void CudaKernels::encode(EncodeJob job, std::uint64_t leaves, CUstream stream) const {
  const bool is_plain = std::all_of(job.coefficients, job.coefficients + job.source_count,
                                    [](std::uint8_t coefficient) { return coefficient == 1; });
  launch(is_plain ? encode_plain_ : encode_any_, job, leaves, stream);
}

}  // namespace ckpt::device
