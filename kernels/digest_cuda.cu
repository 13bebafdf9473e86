#include "kernels/digest_cuda.hpp"
#include "kernels/pack_kernel.cuh"

namespace ckpt::kernels::device {

namespace {

// The arguments of one launch. Here the piece is one tensor, so the table of its segments fits into the arguments.
struct DigestJob {
  DeviceSegment segments[2];
  PackJob pack;
};

__global__ void __launch_bounds__(pack_threads_per_block) digest_leaf(const __grid_constant__ DigestJob job) {
  SegmentsJob range = job.pack.range;
  range.segments = job.segments;
  move_leaf<Direction::pack>(range, job.pack.digests, job.pack.keys);
}

DigestJob make_digest_job(const void* data, std::uint64_t length_bytes, std::uint64_t* digests, void* copy) {
  auto* const tensor = static_cast<unsigned char*>(const_cast<void*>(data));  // only read
  const SegmentsJob range{nullptr, 1, 0, length_bytes, static_cast<unsigned char*>(copy), false};
  return {{{tensor, 0}, {nullptr, length_bytes}}, {range, digests, make_digest_keys()}};
}

}  // namespace

cudaError_t digest_leaves(const void* data, std::uint64_t length_bytes, std::uint64_t* digests, cudaStream_t stream,
                          void* copy) {
  const std::uint64_t leaves = leaf_count(length_bytes);
  if (leaves == 0) return cudaSuccess;
  if (leaves > 0x7FFFFFFFU) return cudaErrorInvalidValue;  // 128 TiB
  const DigestJob job = make_digest_job(data, length_bytes, digests, copy);
  digest_leaf<<<static_cast<unsigned>(leaves), pack_threads_per_block, 0, stream>>>(job);
  return cudaGetLastError();
}

}  // namespace ckpt::kernels::device
