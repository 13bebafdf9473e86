#include "base/futex.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

namespace ckpt {
namespace {

int operation(int code, FutexScope scope) { return scope == FutexScope::process ? code | FUTEX_PRIVATE_FLAG : code; }

}  // namespace

void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen, Deadline deadline, FutexScope scope) {
  const auto left = deadline.at() - Clock::now();
  if (left <= left.zero()) return;
  const auto left_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(left).count();
  const timespec timeout{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
  ::syscall(SYS_futex, &word, operation(FUTEX_WAIT, scope), seen, &timeout, nullptr, 0);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word, FutexScope scope) {
  ::syscall(SYS_futex, &word, operation(FUTEX_WAKE, scope), INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ckpt
