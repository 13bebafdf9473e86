#include "device/cuda_kernels.hpp"

#include "kernels/capture_kernels.hpp"
#include "kernels/launch.hpp"
#include "kernels/pack_body.hpp"

namespace ckpt::device {
namespace {

using namespace kernels::device;

// Starts a block of threads for each leaf.
void launch(CUfunction function, const SegmentsJob& range, CUdeviceptr digests, CUstream stream) {
  const std::uint64_t leaves = kernels::leaf_count(range.length_bytes);
  if (leaves == 0) return;
  PackJob job{range, reinterpret_cast<std::uint64_t*>(digests), make_digest_keys()};
  void* arguments[] = {&job};
  CKPT_CUDA(cuLaunchKernel, function, static_cast<unsigned>(leaves), 1, 1, pack_threads_per_block, 1, 1, 0, stream,
            arguments, nullptr);
}

}  // namespace

CudaKernels::CudaKernels() {
  if (cuda_driver().cuModuleLoadData(&module_, capture_kernels_image) != CUDA_SUCCESS)
    CKPT_CUDA(cuModuleLoadData, &module_, capture_kernels_ptx);
  CKPT_CUDA(cuModuleGetFunction, &pack_, module_, "ckpt_pack");
  CKPT_CUDA(cuModuleGetFunction, &unpack_, module_, "ckpt_unpack");
}

void CudaKernels::pack(const SegmentsJob& range, CUdeviceptr digests, CUstream stream) const {
  launch(pack_, range, digests, stream);
}

void CudaKernels::unpack(const SegmentsJob& range, CUdeviceptr digests, CUstream stream) const {
  launch(unpack_, range, digests, stream);
}

}  // namespace ckpt::device
