#include "device/copy_pool.hpp"

#include <algorithm>

#include "base/futex.hpp"
#include "base/thread.hpp"

namespace ckpt::device {
namespace {

constexpr std::size_t batch_max_leaves = 16;  // 1 MiB: taking it costs little, and a capture has many

}  // namespace

CopyPool::CopyPool(unsigned threads) {
  for (unsigned i = 0; i < threads; ++i) threads_.push_back(start_thread("ckpt-copy", [this] { run(); }));
}

CopyPool::~CopyPool() {
  cancel();
  stop_.store(true, std::memory_order_relaxed);
  ring(started_, FutexScope::process);
  for (std::thread& thread : threads_) thread.join();
}

void CopyPool::start(std::size_t leaves, Work work) {
  work_ = std::move(work);
  leaves_ = leaves;
  batch_ = std::clamp<std::size_t>(leaves / (threads_.size() * 4), 1, batch_max_leaves);
  next_leaf_.store(0, std::memory_order_relaxed);
  working_.store(leaves == 0 ? 0 : static_cast<std::uint32_t>(threads_.size()), std::memory_order_relaxed);
  if (leaves != 0) ring(started_, FutexScope::process);
}

bool CopyPool::wait(Deadline deadline) const {
  while (const std::uint32_t working = working_.load(std::memory_order_acquire)) {
    if (deadline.passed()) return false;
    futex_wait(working_, working, deadline, FutexScope::process);
  }
  return true;
}

void CopyPool::cancel() {
  // Far beyond any piece. Also far from overflow, because each thread still adds a batch.
  next_leaf_.store(SIZE_MAX / 2, std::memory_order_relaxed);
  while (!wait(Deadline::in_ms(1000))) {
  }
}

void CopyPool::work_off() {
  for (;;) {
    const std::size_t first = next_leaf_.fetch_add(batch_, std::memory_order_relaxed);
    if (first >= leaves_) return;
    if (!work_(first, std::min(first + batch_, leaves_))) next_leaf_.store(SIZE_MAX / 2, std::memory_order_relaxed);
  }
}

void CopyPool::run() {
  std::uint32_t seen = 0;
  for (;;) {
    std::uint32_t started = started_.load(std::memory_order_acquire);
    while (started == seen) {
      futex_wait(started_, seen, Deadline::in_ms(60'000), FutexScope::process);
      started = started_.load(std::memory_order_acquire);
    }
    if (stop_.load(std::memory_order_relaxed)) return;
    seen = started;
    work_off();
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) futex_wake_all(working_, FutexScope::process);
  }
}

}  // namespace ckpt::device
