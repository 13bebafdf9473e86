// Iterations so long that a test is over before anything in them is due.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "arena/comm_log.hpp"

namespace ckpt::client {

inline constexpr std::uint32_t profile_iterations = 3;

// Writes marks of iterations of an hour: the device idles from minute 20 to minute 40, and the update comes in minute
// 50. So in a test that takes less than minutes, no bubble and no update is ever due. The clock begins when the machine
// starts, and no mark may be earlier. So iterations are shorter if the machine has run for less than four hours.
inline void write_long_iterations(arena::CommWriter writer) {
  const Clock::time_point now = Clock::now();
  const auto hour = std::min<Clock::duration>(std::chrono::hours(1), now.time_since_epoch() / (profile_iterations + 1));
  Clock::time_point at = now - profile_iterations * hour;
  for (std::uint32_t i = 0; i < profile_iterations; ++i, at += hour) {
    writer.iteration(at);
    writer.bubble_begin(at + hour / 3);
    writer.bubble_end(at + 2 * hour / 3);
    writer.update(at + 5 * hour / 6);
  }
}

}  // namespace ckpt::client
