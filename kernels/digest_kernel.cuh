// What one block of GPU threads does to digest leaves: it has eight threads for each leaf. Internal to kernels/.
#pragma once

#include "kernels/digest_body.hpp"
#include "kernels/launch.hpp"

namespace ckpt::kernels::device {

static_assert(digest_leaves_per_block * lanes_per_leaf == digest_threads_per_block);

__device__ __forceinline__ void digest_block(const DigestJob& job) {
  __shared__ std::uint64_t words[key_words];
  __shared__ std::uint64_t sums[digest_leaves_per_block][lanes_per_leaf];
  if (threadIdx.x < key_words) words[threadIdx.x] = job.keys.words[threadIdx.x];
  __syncthreads();
  const unsigned lane = threadIdx.x % lanes_per_leaf, of_block = threadIdx.x / lanes_per_leaf;
  const std::uint64_t index = std::uint64_t{blockIdx.x} * digest_leaves_per_block + of_block;
  const bool exists = index < job.leaves;
  const DeviceLeaf leaf = exists ? leaf_of(job, index) : DeviceLeaf{nullptr, 0};
  if (exists && !is_short(leaf)) sums[of_block][lane] = accumulate_lane(job, words, leaf, lane);
  __syncwarp();
  if (!exists || lane != 0) return;
  job.digests[index] =
      is_short(leaf) ? digest_short(job.keys, leaf) : merge_lanes(job.keys, sums[of_block], leaf.size_bytes);
}

}  // namespace ckpt::kernels::device
