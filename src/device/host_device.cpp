#include "device/host_device.hpp"

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

void HostDevice::start(const Plan& plan, Packed to) {
  plan_ = &plan;
  to_ = to;
  pool_.start(plan.leaves(), [this](std::size_t first, std::size_t last) {
    kernels::gather_leaves(plan_->sources(), plan_->offsets(), to_.data, first, last, to_.digests);
    return true;
  });
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
