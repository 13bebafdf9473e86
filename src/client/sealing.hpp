// The state of a capture that was released and that a thread of the device seals later. The training thread asks
// whether sealing is still under way, and leaves the capture alone until it has ended.
#pragma once

#include <atomic>

#include "base/clock.hpp"
#include "base/futex.hpp"

namespace ckpt::client {

class Sealing {
 public:
  // Training thread. begin(): before the capture is released. none(): if it was not released after all.
  void begin() { under_way_.store(1, std::memory_order_relaxed); }
  void none() { under_way_.store(0, std::memory_order_relaxed); }
  // Any thread. The last thing it does with the capture.
  void end() {
    // Sequentially consistent, as in wait(): either the waiter sees the end, or this thread sees the waiter.
    under_way_.store(0);
    if (waiters_.load() != 0) futex_wake_all(under_way_, FutexScope::process);
  }

  bool under_way() const { return under_way_.load(std::memory_order_acquire) != 0; }
  // Waits until sealing has ended. False if the deadline passed first.
  bool wait(Deadline deadline) const {
    waiters_.fetch_add(1);
    while (under_way_.load() != 0 && !deadline.passed()) futex_wait(under_way_, 1, deadline, FutexScope::process);
    waiters_.fetch_sub(1);
    return !under_way();
  }

 private:
  std::atomic<std::uint32_t> under_way_{0};  // futex
  mutable std::atomic<std::uint32_t> waiters_{0};
};

}  // namespace ckpt::client
