#include "device/host_device.hpp"

#include <algorithm>
#include <atomic>

namespace ckpt::device {

Plan::Plan(std::vector<Region> regions) : targets_(std::move(regions)) {
  sources_.reserve(targets_.size());
  for (const Region& region : targets_) sources_.push_back({region.data, region.size_bytes});
  offsets_ = kernels::segment_offsets(std::span<const kernels::Source>(sources_));
}

void HostDevice::capture(const Plan& plan, Packed to) {
  kernels::gather_leaves(plan.sources(), plan.offsets(), to.data, 0, plan.leaves(), to.digests);
}

Plan Plan::slice(std::uint64_t first_byte, std::uint64_t size_bytes) const {
  const std::uint64_t end = first_byte + size_bytes;
  std::vector<Region> regions;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const std::uint64_t from = std::max<std::uint64_t>(offsets_[i], first_byte);
    const std::uint64_t to = std::min<std::uint64_t>(offsets_[i] + targets_[i].size_bytes, end);
    if (from < to) regions.push_back({targets_[i].data + (from - offsets_[i]), to - from});
  }
  return Plan(std::move(regions));
}

void HostDevice::start(std::span<const Copy> copies) {
  copy_count_ = std::min(copies.size(), plans_max);
  std::size_t leaves = 0;
  for (std::size_t i = 0; i < copy_count_; ++i) {
    copies_[i] = copies[i];
    leaves += copies[i].plan->leaves();
  }
  pool_.start(leaves, [this](std::size_t first, std::size_t last) {
    copy_leaves(first, last);
    return true;
  });
}

// The leaves of all copies are counted through.
void HostDevice::copy_leaves(std::size_t first, std::size_t last) const {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < copy_count_; ++i) {
    const auto& [plan, to] = copies_[i];
    const std::size_t end = begin + plan->leaves();
    const std::size_t from = std::max(first, begin), until = std::min(last, end);
    if (from < until)
      kernels::gather_leaves(plan->sources(), plan->offsets(), to.data, from - begin, until - begin, to.digests);
    begin = end;
  }
}

std::optional<std::size_t> HostDevice::load(const Plan& plan, ConstPacked from) {
  constexpr std::size_t none = SIZE_MAX;
  std::atomic<std::size_t> bad_leaf{none};
  pool_.start(plan.leaves(), [&](std::size_t first, std::size_t last) {
    const auto bad = kernels::scatter_leaves(plan.targets(), plan.offsets(), from.data, first, last, from.digests);
    if (bad) bad_leaf.store(*bad, std::memory_order_relaxed);
    return !bad;
  });
  while (!pool_.wait(Deadline::in_ms(60'000))) {
  }
  const std::size_t leaf = bad_leaf.load(std::memory_order_relaxed);
  return leaf == none ? std::nullopt : std::optional(leaf);
}

}  // namespace ckpt::device
