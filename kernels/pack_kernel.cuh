// What one block of GPU threads does to pack and digest a leaf, or to unpack and digest it. Internal to kernels/.
#pragma once

#include "kernels/pack_body.hpp"

namespace ckpt::kernels::device {

// Adds up the sums of those threads of the warp that have the same two lanes. All 32 threads must call it.
__device__ __forceinline__ LanePair sum_of_warp(LanePair part) {
  CKPT_UNROLL
  for (unsigned distance = threads_per_warp / 2; distance >= vectors_per_stripe; distance /= 2) {
    part.even += __shfl_xor_sync(0xFFFFFFFFU, static_cast<unsigned long long>(part.even), distance);
    part.odd += __shfl_xor_sync(0xFFFFFFFFU, static_cast<unsigned long long>(part.odd), distance);
  }
  return part;
}

template <Direction direction>
__device__ __forceinline__ void move_leaf(const PackJob& job) {
  __shared__ SegmentsJob leaf;
  __shared__ std::uint64_t words[key_words];
  __shared__ __align__(16) RoundSums sums;
  if (threadIdx.x == 0) leaf = leaf_job(job.range, blockIdx.x);
  if (threadIdx.x < key_words) words[threadIdx.x] = job.keys.words[threadIdx.x];
  __syncthreads();

  unsigned char* const plain = plain_data(leaf);
  const unsigned rounds = round_count(leaf), thread = threadIdx.x % threads_per_warp;
  for (unsigned round = threadIdx.x / threads_per_warp; round < rounds; round += blockDim.x / threads_per_warp) {
    const LanePair sum = sum_of_warp(move_round<direction>(leaf, plain, words, round, thread));
    if (thread >= vectors_per_stripe) continue;
    sums[round][2 * thread] = sum.even;
    sums[round][2 * thread + 1] = sum.odd;
  }
  __syncthreads();

  if (job.digests == nullptr || threadIdx.x >= lanes_per_leaf) return;
  if (leaf.length_bytes <= short_leaf_bytes) {
    if (threadIdx.x == 0)
      job.digests[blockIdx.x] = digest_short_leaf<direction>(leaf, job.keys, reinterpret_cast<unsigned char*>(sums));
    return;
  }
  // Each thread reads only the sums of its own lane, so it may overwrite the first of them.
  sums[0][threadIdx.x] = accumulator<direction>(leaf, job.keys, sums, threadIdx.x);
  __syncwarp((1U << lanes_per_leaf) - 1);
  if (threadIdx.x == 0) job.digests[blockIdx.x] = merge_lanes(job.keys, sums[0], leaf.length_bytes);
}

}  // namespace ckpt::kernels::device
