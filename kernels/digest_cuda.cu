#include "kernels/digest_body.hpp"
#include "kernels/digest_cuda.hpp"

namespace ckpt::kernels::device {

namespace {

constexpr unsigned threads_per_block = 128;
constexpr unsigned leaves_per_block = threads_per_block / lanes_per_leaf;

__global__ void __launch_bounds__(threads_per_block) digest_kernel(const __grid_constant__ DigestJob job) {
  __shared__ std::uint64_t words[key_words];
  __shared__ std::uint64_t sums[leaves_per_block][lanes_per_leaf];
  if (threadIdx.x < key_words) words[threadIdx.x] = job.keys.words[threadIdx.x];
  __syncthreads();
  const unsigned lane = threadIdx.x % lanes_per_leaf, of_block = threadIdx.x / lanes_per_leaf;
  const std::uint64_t index = std::uint64_t{blockIdx.x} * leaves_per_block + of_block;
  const bool exists = index < job.leaves;
  const DeviceLeaf leaf = exists ? leaf_of(job, index) : DeviceLeaf{nullptr, 0};
  if (exists && !is_short(leaf)) sums[of_block][lane] = accumulate_lane(job, words, leaf, lane);
  __syncwarp();
  if (!exists || lane != 0) return;
  job.digests[index] = is_short(leaf) ? digest_short(job, leaf) : merge_lanes(job, sums[of_block], leaf.size_bytes);
}

}  // namespace

cudaError_t digest_leaves(const void* data, std::uint64_t length_bytes, std::uint64_t* digests, cudaStream_t stream) {
  const DigestJob job = make_digest_job(data, length_bytes, digests);
  if (job.leaves == 0) return cudaSuccess;
  const std::uint64_t blocks = (job.leaves + leaves_per_block - 1) / leaves_per_block;
  if (blocks > 0x7FFFFFFFU) return cudaErrorInvalidValue;  // 2 PiB
  digest_kernel<<<static_cast<unsigned>(blocks), threads_per_block, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace ckpt::kernels::device
