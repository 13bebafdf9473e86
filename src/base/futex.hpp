// Waits until a 32-bit word changes, within a process or between processes that map the same file.
//
// A writer changes the word first, and then wakes. A waiter reads the word, looks whether it must wait, and then waits
// for the word to differ from the value that it read. So it misses no change. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"

namespace ckpt {

enum class FutexScope { process, shared };

// Returns when woken, when the word is not `seen`, when the deadline has passed, or spuriously. So check the word
// again.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, Deadline deadline, FutexScope scope);
void futex_wake_all(const std::atomic<std::uint32_t>& word, FutexScope scope);

// Adds one to the word (release) and wakes all waiters.
inline void ring(std::atomic<std::uint32_t>& doorbell, FutexScope scope) {
  doorbell.fetch_add(1, std::memory_order_release);
  futex_wake_all(doorbell, scope);
}

}  // namespace ckpt
