#include "traffic.hpp"

namespace cuda_double {
namespace {

bool on_device(const Memory& memory, const Footprint::Range& range) {
  return memory.on_device(reinterpret_cast<CUdeviceptr>(range.data));
}

}  // namespace

// Host memory is behind the link, for copies and kernels alike.
void Traffic::add(const Memory& memory, const std::string& name, const Footprint& footprint) {
  const std::lock_guard lock(mutex_);
  const auto found = sums_.try_emplace(name).first;
  ckpt_double_traffic& sums = found->second;
  sums.name = found->first.c_str();
  ++sums.count;
  for (const auto& range : footprint.reads)
    (on_device(memory, range) ? sums.device_read_bytes : sums.to_device_bytes) += range.size_bytes;
  for (const auto& range : footprint.writes)
    (on_device(memory, range) ? sums.device_written_bytes : sums.to_host_bytes) += range.size_bytes;
}

bool Traffic::at(std::size_t index, ckpt_double_traffic* sums) const {
  const std::lock_guard lock(mutex_);
  for (const auto& entry : sums_) {
    if (index-- > 0) continue;
    *sums = entry.second;
    return true;
  }
  return false;
}

}  // namespace cuda_double
