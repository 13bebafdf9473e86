#include "device/cuda_kernels.hpp"

#include "kernels/capture_kernels.hpp"
#include "kernels/digest_body.hpp"
#include "kernels/launch.hpp"

namespace ckpt::device {
namespace {

using namespace kernels::device;

// Starts `threads` threads in all. In the last block, some may find nothing to do.
template <class Job>
void launch(CUfunction function, Job job, std::uint64_t threads, unsigned threads_per_block, CUstream stream) {
  if (threads == 0) return;
  const auto blocks = static_cast<unsigned>((threads + threads_per_block - 1) / threads_per_block);
  void* arguments[] = {&job};
  CKPT_CUDA(cuLaunchKernel, function, blocks, 1, 1, threads_per_block, 1, 1, 0, stream, arguments, nullptr);
}

}  // namespace

CudaKernels::CudaKernels() {
  if (cuda_driver().cuModuleLoadData(&module_, capture_kernels_image) != CUDA_SUCCESS)
    CKPT_CUDA(cuModuleLoadData, &module_, capture_kernels_ptx);
  CKPT_CUDA(cuModuleGetFunction, &pack_, module_, "ckpt_pack");
  CKPT_CUDA(cuModuleGetFunction, &unpack_, module_, "ckpt_unpack");
  CKPT_CUDA(cuModuleGetFunction, &digest_, module_, "ckpt_digest");
}

void CudaKernels::pack(const SegmentsJob& job, CUstream stream) const {
  launch(pack_, job, vector_count(job), segments_threads_per_block, stream);
}

void CudaKernels::unpack(const SegmentsJob& job, CUstream stream) const {
  launch(unpack_, job, vector_count(job), segments_threads_per_block, stream);
}

void CudaKernels::digest(CUdeviceptr data, std::uint64_t length_bytes, CUdeviceptr digests, CUstream stream) const {
  const DigestJob job =
      make_digest_job(reinterpret_cast<const void*>(data), length_bytes, reinterpret_cast<std::uint64_t*>(digests));
  launch(digest_, job, job.leaves * lanes_per_leaf, digest_threads_per_block, stream);
}

}  // namespace ckpt::device
