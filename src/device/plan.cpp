#include <algorithm>

#include "device/device.hpp"

namespace ckpt::device {

Plan::Plan(const std::vector<Region>& regions) {
  for (const Region& region : regions) {
    sources_.push_back({region.data, region.size_bytes});
    targets_.push_back({region.data, region.size_bytes});
    memories_.push_back(region.memory);
  }
  offsets_ = kernels::segment_offsets(std::span<const kernels::Source>(sources_));
}

Plan Plan::slice(std::uint64_t first_byte, std::uint64_t size_bytes) const {
  const std::uint64_t end = first_byte + size_bytes;
  std::vector<Region> regions;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const std::uint64_t from = std::max<std::uint64_t>(offsets_[i], first_byte);
    const std::uint64_t to = std::min<std::uint64_t>(offsets_[i] + targets_[i].size_bytes, end);
    if (from < to) regions.push_back({targets_[i].data + (from - offsets_[i]), to - from, memories_[i]});
  }
  return Plan(regions);
}

}  // namespace ckpt::device
