#include "kernels/encode_cuda.hpp"
#include "kernels/encode_kernel.cuh"

namespace ckpt::kernels::device {

namespace {

template <bool is_plain>
__global__ void __launch_bounds__(pack_threads_per_block) encode_leaves(const __grid_constant__ EncodeJob job) {
  encode_leaf<is_plain>(job);
}

}  // namespace

cudaError_t encode(EncodeJob job, bool is_plain, std::uint64_t leaves, cudaStream_t stream) {
  if (leaves == 0) return cudaSuccess;
  job.keys = make_digest_keys();
  const auto blocks = static_cast<unsigned>(leaves);
  if (is_plain)
    encode_leaves<true><<<blocks, pack_threads_per_block, 0, stream>>>(job);
  else
    encode_leaves<false><<<blocks, pack_threads_per_block, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace ckpt::kernels::device
