// Reserving reserves slots on a thread of its own. So training does not wait while the pages of new slots are touched
// for the first time.
//
// Only the training thread uses it.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "base/futex.hpp"
#include "base/thread.hpp"

namespace ckpt::client {

class Reserving {
 public:
  Reserving() = default;
  Reserving(const Reserving&) = delete;
  Reserving& operator=(const Reserving&) = delete;
  ~Reserving() { end(); }

  // Runs `reserve`, which has a deadline of its own and may throw Failure. If an earlier reservation is under way,
  // waits for it first.
  void begin(std::function<void()> reserve) {
    end();
    failure_.reset();
    under_way_.store(1, std::memory_order_relaxed);
    thread_ = start_thread("ckpt-reserve", [this, reserve = std::move(reserve)] {
      try {
        reserve();
      } catch (const Failure& failure) {
        failure_ = failure;
      } catch (const std::exception& error) {
        failure_ = Failure(CKPT_ERR_SYSTEM, error.what());
      }
      under_way_.store(0, std::memory_order_release);
      futex_wake_all(under_way_, FutexScope::process);
    });
  }
  bool under_way() const { return under_way_.load(std::memory_order_acquire) != 0; }
  // False if the deadline passed first.
  bool wait(Deadline deadline) const {
    while (under_way() && !deadline.passed()) futex_wait(under_way_, 1, deadline, FutexScope::process);
    return !under_way();
  }
  // Call this after the reservation has ended. Returns why it failed, but only once. Returns nothing if it succeeded.
  std::optional<Failure> take_failure() { return std::exchange(failure_, std::nullopt); }
  void end() {
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<std::uint32_t> under_way_{0};  // futex
  std::optional<Failure> failure_;           // only the thread uses it while it runs
  std::thread thread_;
};

}  // namespace ckpt::client
