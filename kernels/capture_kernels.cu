// The kernels of capture and restore. They are a module that libckptengine loads through the CUDA driver
// (src/device/cuda_kernels.hpp). The kernels have C names, and each takes one struct by value.
#include "kernels/digest_kernel.cuh"
#include "kernels/segments_body.hpp"

using namespace ckpt::kernels::device;

namespace {

__device__ std::uint64_t thread_number() { return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; }

}  // namespace

extern "C" __global__ void __launch_bounds__(segments_threads_per_block)
    ckpt_pack(const __grid_constant__ SegmentsJob job) {
  if (thread_number() < vector_count(job)) pack_vector(job, thread_number());
}

extern "C" __global__ void __launch_bounds__(segments_threads_per_block)
    ckpt_unpack(const __grid_constant__ SegmentsJob job) {
  if (thread_number() < vector_count(job)) unpack_vector(job, thread_number());
}

extern "C" __global__ void __launch_bounds__(digest_threads_per_block)
    ckpt_digest(const __grid_constant__ DigestJob job) {
  digest_block(job);
}
