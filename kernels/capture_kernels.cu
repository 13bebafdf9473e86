// The kernels of capture, restore and parity. They are a module that libckptengine loads through the CUDA driver
// (src/device/cuda_kernels.hpp). The kernels have C names, and each takes one struct by value.
#include "kernels/encode_kernel.cuh"

using namespace ckpt::kernels::device;

extern "C" __global__ void __launch_bounds__(pack_threads_per_block) ckpt_pack(const __grid_constant__ PackJob job) {
  move_leaf<Direction::pack>(job.range, job.digests, job.keys);
}

extern "C" __global__ void __launch_bounds__(pack_threads_per_block) ckpt_unpack(const __grid_constant__ PackJob job) {
  move_leaf<Direction::unpack>(job.range, job.digests, job.keys);
}

extern "C" __global__ void __launch_bounds__(pack_threads_per_block)
    ckpt_encode_plain(const __grid_constant__ EncodeJob job) {
  encode_leaf<true>(job);
}

extern "C" __global__ void __launch_bounds__(pack_threads_per_block)
    ckpt_encode_any(const __grid_constant__ EncodeJob job) {
  encode_leaf<false>(job);
}
