#include "kernels.hpp"

#include <algorithm>
#include <vector>

#include "kernels/encode_body.hpp"
#include "kernels/launch.hpp"

namespace cuda_double {
namespace {

using namespace ckpt::kernels::device;

bool is_reachable(const Memory& memory, const void* data, std::uint64_t size_bytes) {
  return memory.allocated(reinterpret_cast<CUdeviceptr>(data), size_bytes) || memory.pinned(data, size_bytes);
}

bool are_reachable(const Memory& memory, const std::vector<Footprint::Range>& ranges) {
  return std::all_of(ranges.begin(), ranges.end(),
                     [&](const auto& range) { return is_reachable(memory, range.data, range.size_bytes); });
}

bool is_reachable(const Memory& memory, const Footprint& footprint) {
  return are_reachable(memory, footprint.reads) && are_reachable(memory, footprint.writes);
}

// Adds the bytes of the segments that are in the job's range. `segments` is the table, where host code can read it.
void add_segments(const SegmentsJob& job, const DeviceSegment* segments, std::vector<Footprint::Range>& ranges) {
  const std::uint64_t first = job.first_byte, last = job.first_byte + job.length_bytes;
  for (std::uint64_t i = 0; i < job.count; ++i) {
    const std::uint64_t begin = std::max(segments[i].begin, first), end = std::min(segments[i + 1].begin, last);
    if (begin < end) ranges.push_back({segments[i].data + (begin - segments[i].begin), end - begin});
  }
}

// Adds the packed bytes of those leaves of the range that the kernel stores or reads.
void add_packed(SegmentsJob job, const DeviceSegment* segments, std::vector<Footprint::Range>& ranges) {
  job.segments = segments;
  for (std::uint64_t i = 0; i < ckpt::kernels::leaf_count(job.length_bytes); ++i) {
    const SegmentsJob leaf = leaf_job(job, i);
    if (leaf.packed != nullptr) ranges.push_back({leaf.packed, leaf.length_bytes});
  }
}

// Runs a job: its table and what the table points to, where their bytes are. Each block has a leaf.
template <Direction direction>
Work pack_kernel(const Memory& memory, void** arguments, unsigned blocks, unsigned threads) {
  return [&memory, job = *static_cast<const PackJob*>(arguments[0]), blocks, threads](Footprint& footprint) mutable {
    constexpr bool packs = direction == Direction::pack;
    SegmentsJob& range = job.range;
    const std::uint64_t leaves = ckpt::kernels::leaf_count(range.length_bytes);
    if (threads != pack_threads_per_block || blocks != leaves) return CUDA_ERROR_INVALID_VALUE;
    footprint.reads.push_back({range.segments, (range.count + 1) * sizeof(DeviceSegment)});
    if (!is_reachable(memory, footprint)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    const DeviceSegment* const table = memory.bytes_at(range.segments);
    add_segments(range, table, packs ? footprint.reads : footprint.writes);
    add_packed(range, table, packs ? footprint.writes : footprint.reads);
    if (job.digests != nullptr) footprint.writes.push_back({job.digests, leaves * sizeof(job.digests[0])});
    if (!is_reachable(memory, footprint)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::vector<DeviceSegment> segments(table, table + range.count + 1);
    for (DeviceSegment& segment : segments) segment.data = memory.bytes_at(segment.data);
    range.segments = segments.data();
    range.packed = memory.bytes_at(range.packed);
    std::uint64_t* const digests = memory.bytes_at(job.digests);
    for (std::uint64_t i = 0; i < leaves; ++i) {
      const std::uint64_t digest = move_leaf_on_host<direction>(job, i);
      if (digests != nullptr) digests[i] = digest;
    }
    return CUDA_SUCCESS;
  };
}

// Makes parity: a block makes each leaf.
template <bool is_plain>
Work encode_kernel(const Memory& memory, void** arguments, unsigned blocks, unsigned threads) {
  return [&memory, job = *static_cast<const EncodeJob*>(arguments[0]), blocks, threads](Footprint& footprint) mutable {
    if (threads != pack_threads_per_block) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t parity_bytes = std::uint64_t{blocks} * ckpt::kernels::leaf_size_bytes;
    for (std::uint32_t i = 0; i < job.source_count; ++i) {
      const std::uint64_t size_bytes = std::min(job.sources[i].size_bytes, parity_bytes);
      const std::uint64_t leaves = ckpt::kernels::leaf_count(size_bytes);
      if (leaves != 0) footprint.reads.push_back({job.sources[i].data, leaves * ckpt::kernels::leaf_size_bytes});
    }
    footprint.writes.push_back({job.parity, parity_bytes});
    footprint.writes.push_back({job.digests, std::size_t{blocks} * (job.source_count + 1) * sizeof(job.digests[0])});
    if (!is_reachable(memory, footprint)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    for (std::uint32_t i = 0; i < job.source_count; ++i) job.sources[i].data = memory.bytes_at(job.sources[i].data);
    job.parity = memory.bytes_at(job.parity);
    job.digests = memory.bytes_at(job.digests);
    for (std::uint64_t leaf = 0; leaf < blocks; ++leaf) encode_leaf_on_host<is_plain>(job, leaf);
    return CUDA_SUCCESS;
  };
}

}  // namespace

Kernel find_kernel(std::string_view name) {
  if (name == "ckpt_pack") return pack_kernel<Direction::pack>;
  if (name == "ckpt_unpack") return pack_kernel<Direction::unpack>;
  if (name == "ckpt_encode_plain") return encode_kernel<true>;
  if (name == "ckpt_encode_any") return encode_kernel<false>;
  return nullptr;
}

}  // namespace cuda_double
