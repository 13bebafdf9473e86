// Waits until a 32-bit word changes, within a process or between processes that map the same file.
//
// A writer changes the word first, and then wakes the waiters. A waiter reads the word, checks whether it must wait,
// and then waits until the word differs from the value that it read. So a waiter misses no change. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace ckpt {

// process: all waiters are in this process. shared: waiters may be in other processes that map the same file.
enum class FutexScope { process, shared };

// Waits while the word equals `seen`. Returns when woken, when the word differs from `seen`, when the deadline has
// passed, or without a reason (a spurious wake-up). So check the word again afterwards.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, Deadline deadline, FutexScope scope);
void futex_wake_all(const std::atomic<std::uint32_t>& word, FutexScope scope);

// Adds one to the word (release) and wakes all waiters.
inline void ring(std::atomic<std::uint32_t>& doorbell, FutexScope scope) {
  doorbell.fetch_add(1, std::memory_order_release);
  futex_wake_all(doorbell, scope);
}

}  // namespace ckpt
