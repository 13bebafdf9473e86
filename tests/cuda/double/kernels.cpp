#include "kernels.hpp"

#include <algorithm>
#include <vector>

#include "kernels/digest_body.hpp"
#include "kernels/launch.hpp"
#include "kernels/segments_body.hpp"

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

// A job as host code can run it: its table and what the table points to, where their bytes are.
template <void (*vector_work)(const SegmentsJob&, std::uint64_t), bool packs>
Work segments_kernel(const Memory& memory, void** arguments, unsigned blocks, unsigned threads) {
  return [&memory, job = *static_cast<const SegmentsJob*>(arguments[0]), blocks, threads](Footprint& footprint) mutable {
    footprint.reads.push_back({job.segments, (job.count + 1) * sizeof(DeviceSegment)});
    (packs ? footprint.writes : footprint.reads).push_back({job.packed, job.length_bytes});
    if (!is_reachable(memory, footprint)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    const DeviceSegment* const table = memory.bytes_at(job.segments);
    add_segments(job, table, packs ? footprint.reads : footprint.writes);
    if (!is_reachable(memory, footprint)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    std::vector<DeviceSegment> segments(table, table + job.count + 1);
    for (DeviceSegment& segment : segments) segment.data = memory.bytes_at(segment.data);
    job.segments = segments.data();
    job.packed = memory.bytes_at(job.packed);
    const std::uint64_t count = std::uint64_t{blocks} * threads;
    for (std::uint64_t i = 0; i < count && i < vector_count(job); ++i) vector_work(job, i);
    return CUDA_SUCCESS;
  };
}

std::uint64_t digest_of(const DigestJob& job, std::uint64_t index) {
  const DeviceLeaf leaf = leaf_of(job, index);
  if (is_short(leaf)) return digest_short(job, leaf);
  std::uint64_t sums[lanes_per_leaf];
  for (unsigned lane = 0; lane < lanes_per_leaf; ++lane) sums[lane] = accumulate_lane(job, job.keys.words, leaf, lane);
  return merge_lanes(job, sums, leaf.size_bytes);
}

Work digest_kernel(const Memory& memory, void** arguments, unsigned blocks, unsigned) {
  return [&memory, job = *static_cast<const DigestJob*>(arguments[0]), blocks](Footprint& footprint) mutable {
    footprint.reads.push_back({job.data, job.length_bytes});
    footprint.writes.push_back({job.digests, job.leaves * sizeof(job.digests[0])});
    if (!is_reachable(memory, footprint)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    job.data = memory.bytes_at(job.data);
    job.digests = memory.bytes_at(job.digests);
    const std::uint64_t count = std::uint64_t{blocks} * digest_leaves_per_block;
    for (std::uint64_t i = 0; i < count && i < job.leaves; ++i) job.digests[i] = digest_of(job, i);
    return CUDA_SUCCESS;
  };
}

}  // namespace

Kernel find_kernel(std::string_view name) {
  if (name == "ckpt_pack") return segments_kernel<pack_vector, true>;
  if (name == "ckpt_unpack") return segments_kernel<unpack_vector, false>;
  if (name == "ckpt_digest") return digest_kernel;
  return nullptr;
}

}  // namespace cuda_double
