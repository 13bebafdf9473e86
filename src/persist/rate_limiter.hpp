// RateLimiter limits how fast checkpoints are written to storage. In any interval of T seconds, it lets at most T *
// rate bytes pass, plus one block. Time in which nothing was written cannot be used later.
//
// RateLimiterClock supplies the time, so that tests can replace it. Only one thread may use a RateLimiter.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>

#include "base/clock.hpp"

namespace ckpt::persist {

class RateLimiterClock {
 public:
  virtual ~RateLimiterClock() = default;
  virtual Clock::time_point now() { return Clock::now(); }
  // Returns at `until`, or as soon as `stop` is requested.
  virtual void sleep(Clock::time_point until, const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any stopped;
    std::unique_lock lock(mutex);
    stopped.wait_until(lock, stop, until, [] { return false; });
  }
};

class RateLimiter {
 public:
  // `bytes_per_second` 0: no limit. The clock must outlive this object.
  RateLimiter(std::uint64_t bytes_per_second, RateLimiterClock& clock)
      : bytes_per_second_(bytes_per_second), clock_(clock) {}

  // Waits until `bytes` more bytes may be written, or until `stop` is requested.
  void take(std::uint64_t bytes, const std::stop_token& stop) {
    if (bytes_per_second_ == 0) return;
    const auto now = clock_.now();
    const auto start = std::max(next_, now);
    const auto takes = std::chrono::duration<double>(static_cast<double>(bytes) / double(bytes_per_second_));
    next_ = start + std::chrono::duration_cast<Clock::duration>(takes);
    if (start > now) clock_.sleep(start, stop);
  }

 private:
  const std::uint64_t bytes_per_second_;
  RateLimiterClock& clock_;
  Clock::time_point next_{};
};

}  // namespace ckpt::persist
