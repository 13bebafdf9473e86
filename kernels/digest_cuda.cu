#include "kernels/digest_cuda.hpp"
#include "kernels/digest_kernel.cuh"

namespace ckpt::kernels::device {

namespace {

__global__ void __launch_bounds__(digest_threads_per_block) digest_kernel(const __grid_constant__ DigestJob job) {
  digest_block(job);
}

}  // namespace

cudaError_t digest_leaves(const void* data, std::uint64_t length_bytes, std::uint64_t* digests, cudaStream_t stream) {
  const DigestJob job = make_digest_job(data, length_bytes, digests);
  if (job.leaves == 0) return cudaSuccess;
  const std::uint64_t blocks = (job.leaves + digest_leaves_per_block - 1) / digest_leaves_per_block;
  if (blocks > 0x7FFFFFFFU) return cudaErrorInvalidValue;  // 2 PiB
  digest_kernel<<<static_cast<unsigned>(blocks), digest_threads_per_block, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace ckpt::kernels::device
