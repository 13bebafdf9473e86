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

// Stores what the first threads of a warp have for a round.
__device__ __forceinline__ void put_sums(RoundSums& sums, unsigned round, unsigned thread, const LanePair& sum) {
  if (thread >= vectors_per_stripe) return;
  sums[round][2 * thread] = sum.even;
  sums[round][2 * thread + 1] = sum.odd;
}

template <Direction direction>
__device__ __forceinline__ void move_rounds(const SegmentsJob& leaf, const std::uint64_t* words, RoundSums& sums) {
  const unsigned warp = threadIdx.x / threads_per_warp, thread = threadIdx.x % threads_per_warp;
  const WholeLeaf whole = whole_leaf<direction>(leaf);
  if (whole.from != nullptr) {
    const RoundKeys keys = round_keys(words, thread);
    for (unsigned first = warp; first < rounds_per_leaf; first += warps_per_block * rounds_at_once) {
      const WholeSums part = move_whole_rounds(whole, keys, first, thread);
      CKPT_UNROLL
      for (unsigned i = 0; i < rounds_at_once; ++i)
        put_sums(sums, first + i * warps_per_block, thread, sum_of_warp(part.rounds[i]));
    }
    return;
  }
  unsigned char* const plain = plain_data(leaf);
  const unsigned rounds = round_count(leaf);
  for (unsigned round = warp; round < rounds; round += warps_per_block)
    put_sums(sums, round, thread, sum_of_warp(move_round<direction>(leaf, plain, words, round, thread)));
}

// The arguments are those of a PackJob.
template <Direction direction>
__device__ __forceinline__ void move_leaf(const SegmentsJob& range, std::uint64_t* digests, const DigestKeys& keys) {
  __shared__ SegmentsJob leaf;
  __shared__ std::uint64_t words[key_words];
  __shared__ __align__(16) RoundSums sums;
  if (threadIdx.x == 0) leaf = leaf_job(range, blockIdx.x);
  if (threadIdx.x < key_words) words[threadIdx.x] = keys.words[threadIdx.x];
  __syncthreads();
  move_rounds<direction>(leaf, words, sums);
  __syncthreads();

  if (digests == nullptr || threadIdx.x >= lanes_per_leaf) return;
  if (leaf.length_bytes <= short_leaf_bytes) {
    if (threadIdx.x == 0)
      digests[blockIdx.x] = digest_short_leaf<direction>(leaf, keys, reinterpret_cast<unsigned char*>(sums));
    return;
  }
  // Each thread reads only the sums of its own lane, so it may overwrite the first of them.
  sums[0][threadIdx.x] = accumulator<direction>(leaf, keys, sums, threadIdx.x);
  __syncwarp((1U << lanes_per_leaf) - 1);
  if (threadIdx.x == 0) digests[blockIdx.x] = merge_lanes(keys, sums[0], leaf.length_bytes);
}

}  // namespace ckpt::kernels::device
