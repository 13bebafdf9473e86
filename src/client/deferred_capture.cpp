#include "client/deferred_capture.hpp"

#include <algorithm>

#include "base/futex.hpp"

namespace ckpt::client {
namespace {

constexpr std::uint64_t private_bytes_max = 16 << 20;  // copying more would stall training longer than a skip is worth
constexpr std::int64_t look_again_ms = 1'000;          // only bounds the wait

}  // namespace

bool DeferredCapture::fits(const RankState& state) { return state.private_.length_bytes() <= private_bytes_max; }

void DeferredCapture::offer(const Snapshot& snapshot) {
  keep_private(snapshot.state->private_.plan);
  snapshot_ = snapshot;
  phase_.store(waiting);
}

void DeferredCapture::keep_private(const device::Plan& plan) {
  if (private_plan_.length_bytes() != plan.length_bytes()) {
    private_bytes_.resize(plan.length_bytes());
    private_plan_ = device::Plan({{private_bytes_.data(), private_bytes_.size()}});
  }
  std::byte* to = private_bytes_.data();
  for (const kernels::Source& source : plan.sources()) to = std::copy_n(source.data, source.size_bytes, to);
}

bool DeferredCapture::take_back() {
  for (std::uint32_t phase = phase_.load();;) {
    switch (phase) {
      case none:
        return false;
      case begun:
        phase_.store(none);
        return false;
      case waiting:
        if (phase_.compare_exchange_weak(phase, none)) return true;
        break;
      case claimed:
        phase_.compare_exchange_weak(phase, claimed_and_awaited);
        break;
      default:
        futex_wait(phase_, claimed_and_awaited, Deadline::in_ms(look_again_ms), FutexScope::process);
        phase = phase_.load();
    }
  }
}

bool DeferredCapture::claim() {
  std::uint32_t phase = waiting;
  return phase_.compare_exchange_strong(phase, claimed);
}

void DeferredCapture::unclaim(bool has_begun) {
  if (phase_.exchange(has_begun ? begun : waiting) == claimed_and_awaited) futex_wake_all(phase_, FutexScope::process);
}

}  // namespace ckpt::client
