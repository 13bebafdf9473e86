// What one block of GPU threads does to make a leaf of parity. Internal to kernels/.
#pragma once

#include "kernels/encode_body.hpp"
#include "kernels/pack_kernel.cuh"

namespace ckpt::kernels::device {

// Writes the digest of a leaf whose rounds are summed up.
__device__ __forceinline__ void write_digest(const CodedLeaf& leaf, const DigestKeys& keys, RoundSums& sums,
                                             std::uint64_t* digest) {
  if (threadIdx.x >= lanes_per_leaf) return;
  if (leaf.size_bytes <= short_leaf_bytes) {
    if (threadIdx.x == 0) *digest = digest_short_leaf(leaf, keys);
    return;
  }
  // Each thread reads only the sums of its own lane, so it may overwrite the first of them.
  sums[0][threadIdx.x] = accumulator(leaf, keys, sums, threadIdx.x);
  __syncwarp((1U << lanes_per_leaf) - 1);
  if (threadIdx.x == 0) *digest = merge_lanes(keys, sums[0], leaf.size_bytes);
}

// Two arrays of sums take turns. While the first warp goes through the sums of one leaf, the others take the next leaf.
// No warp comes to the leaf after that before the first warp is done, because of the barrier between them.
template <bool is_plain>
__device__ __forceinline__ void encode_leaf(const EncodeJob& job) {
  __shared__ std::uint64_t words[key_words];
  __shared__ __align__(16) RoundSums sums[2];
  if (threadIdx.x < key_words) words[threadIdx.x] = job.keys.words[threadIdx.x];
  __syncthreads();
  const unsigned warp = threadIdx.x / threads_per_warp, thread = threadIdx.x % threads_per_warp;
  const RoundKeys keys = round_keys(words, thread);
  std::uint64_t* const digests = job.digests + std::uint64_t{blockIdx.x} * (job.source_count + 1);
  unsigned turn = 0;
  const auto put = [&](unsigned round, unsigned of_thread, const LanePair& sum) {
    put_sums(sums[turn], round, of_thread, sum_of_warp(sum));
  };
  LeafPart part{};
  for (std::uint32_t source = 0; source < job.source_count; ++source) {
    const CodedLeaf leaf = source_leaf(job, source, blockIdx.x);
    if (leaf.size_bytes == 0) {
      if (threadIdx.x == 0) digests[source] = 0;
      continue;
    }
    if (leaf.size_bytes == leaf_size_bytes)
      add_part<is_plain, true>(leaf, keys, warp, thread, part, put);
    else
      add_part<is_plain, false>(leaf, keys, warp, thread, part, put);
    __syncthreads();
    write_digest(leaf, job.keys, sums[turn], digests + source);
    turn ^= 1;
  }
  const CodedLeaf made = parity_leaf(job, blockIdx.x);
  store_part(job.parity + std::uint64_t{blockIdx.x} * leaf_size_bytes, keys, warp, thread, part, put);
  __syncthreads();
  write_digest(made, job.keys, sums[turn], digests + job.source_count);
}

}  // namespace ckpt::kernels::device
