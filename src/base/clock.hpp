// Deadline is the point on the monotonic clock at which a wait gives up. Every function of the project that waits takes
// a Deadline.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ckpt {

using Clock = std::chrono::steady_clock;

// Seconds since the origin of the monotonic clock.
inline double seconds_of(Clock::time_point at) { return std::chrono::duration<double>(at.time_since_epoch()).count(); }

inline double milliseconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

class Deadline {
 public:
  // Returns the deadline `timeout_ms` milliseconds from now. A negative time counts as 0, more than a day as one day.
  static Deadline in_ms(std::int64_t timeout_ms) {
    return Deadline(Clock::now() + std::chrono::milliseconds(std::clamp<std::int64_t>(timeout_ms, 0, longest_ms)));
  }
  // The same in microseconds, for short pauses.
  static Deadline in_us(std::int64_t timeout_us) {
    return Deadline(Clock::now() +
                    std::chrono::microseconds(std::clamp<std::int64_t>(timeout_us, 0, 1000 * longest_ms)));
  }

  bool passed() const { return Clock::now() >= at_; }
  // Milliseconds until the deadline, 0 once it has passed. Rounded up, so that a loop around poll() does not spin.
  int remaining_ms() const {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(at_ - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, longest_ms));
  }
  Clock::time_point at() const { return at_; }

 private:
  static constexpr std::int64_t longest_ms = 24ll * 3600 * 1000;
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace ckpt
