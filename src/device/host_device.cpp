#include "device/host_device.hpp"

#include <algorithm>
#include <atomic>

#include "base/error.hpp"

namespace ckpt::device {

void HostDevice::reach(ckpt_memory memory, const void*) {
  if (memory != CKPT_HOST)
    throw Failure(CKPT_ERR_INVALID,
                  "is in device memory, but this build of ckptengine has no CUDA backend; register a host copy");
}

void HostDevice::start(std::span<const Copy> copies, const Copy& synchronous, Stream) {
  copy_count_ = std::min(copies.size(), plans_max);
  std::size_t leaves = 0;
  for (std::size_t i = 0; i < copy_count_; ++i) {
    copies_[i] = copies[i];
    leaves += copies[i].plan->leaves();
  }
  const auto copy = [this](std::size_t first, std::size_t last) {
    copy_leaves(first, last);
    return true;
  };
  pool_.start(leaves, copy, pace_);
  kernels::gather_leaves(synchronous.plan->sources(), synchronous.plan->offsets(), synchronous.to.data, 0,
                         synchronous.plan->leaves(), synchronous.to.digests);
}

void HostDevice::start_late(std::span<const Copy> overlapped) { start(overlapped, {&nothing_, {}}, nullptr); }

bool HostDevice::release(std::span<const Stream>, std::int64_t timeout_ms, Done done) {
  pool_.hurry();
  if (!pool_.wait(Deadline::in_ms(timeout_ms))) return false;
  done(true);
  return true;
}

// Counts through the leaves of all copies.
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

// Asks `first_bad` for ranges of leaves, on all threads, until it names a leaf.
template <class FirstBad>
std::optional<std::size_t> HostDevice::find_bad(std::size_t leaves, FirstBad first_bad) {
  constexpr std::size_t none = SIZE_MAX;
  std::atomic<std::size_t> bad_leaf{none};
  pool_.start(leaves, [&](std::size_t first, std::size_t last) {
    const std::optional<std::size_t> bad = first_bad(first, last);
    if (bad) bad_leaf.store(*bad, std::memory_order_relaxed);
    return !bad;
  });
  while (!pool_.wait(Deadline::in_ms(60'000))) {
  }
  const std::size_t leaf = bad_leaf.load(std::memory_order_relaxed);
  return leaf == none ? std::nullopt : std::optional(leaf);
}

std::optional<std::size_t> HostDevice::load(const Plan& plan, ConstPacked from, Stream) {
  return find_bad(plan.leaves(), [&](std::size_t first, std::size_t last) {
    return kernels::scatter_leaves(plan.targets(), plan.offsets(), from.data, first, last, from.digests);
  });
}

std::optional<std::size_t> HostDevice::load_leaves(const Plan& plan, ConstPacked from, std::size_t first_leaf,
                                                   std::size_t last_leaf) {
  return kernels::scatter_leaves(plan.targets(), plan.offsets(), from.data, first_leaf, last_leaf, from.digests);
}

std::optional<std::size_t> HostDevice::verify(const Plan& plan, const std::uint64_t* digests, Stream) {
  return find_bad(plan.leaves(), [&](std::size_t first, std::size_t last) {
    return kernels::verify_segments(plan.sources(), plan.offsets(), first, last, digests);
  });
}

}  // namespace ckpt::device
