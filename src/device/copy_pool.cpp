#include "device/copy_pool.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "base/futex.hpp"
#include "base/thread.hpp"

namespace ckpt::device {
namespace {

constexpr std::size_t batch_max_leaves = 16;  // 1 MiB: taking it costs little, and a capture has many

// Training and copy threads may share cores. A thread of training that wants the core of a copy thread then gets it
// within this time, and a copy thread that wakes up takes no core from training. Kernels before 6.12 know no slices of
// single threads, and ignore the time.
constexpr std::uint64_t slice_ns = 100'000;

// linux/sched/types.h has the same struct, but does not go together with sched.h everywhere.
struct SchedulingAttributes {
  std::uint32_t size_bytes = 48;
  std::uint32_t policy = SCHED_BATCH;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime_ns = slice_ns;
  std::uint64_t deadline_ns = 0;
  std::uint64_t period_ns = 0;
};
static_assert(sizeof(SchedulingAttributes) == 48);

// If the kernel refuses, threads copy as any other thread does.
void give_way_to_training() {
  SchedulingAttributes attributes;
  attributes.nice = ::getpriority(PRIO_PROCESS, 0);  // stays as it is
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

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

void CopyPool::start(std::size_t leaves, Work work, CopyPace* pace) {
  work_ = std::move(work);
  pace_ = pace;
  leaves_ = leaves;
  batch_ = std::clamp<std::size_t>(leaves / (threads_.size() * 4), 1, batch_max_leaves);
  next_leaf_.store(0, std::memory_order_relaxed);
  working_.store(leaves == 0 ? 0 : static_cast<std::uint32_t>(threads_.size()), std::memory_order_relaxed);
  if (leaves != 0) ring(started_, FutexScope::process);
}

void CopyPool::hurry() const {
  if (pace_ != nullptr) pace_->hurry();
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
  hurry();
  while (!wait(Deadline::in_ms(1000))) {
  }
}

std::size_t CopyPool::left() const {
  const std::size_t next = next_leaf_.load(std::memory_order_relaxed);
  return next < leaves_ ? leaves_ - next : 0;
}

void CopyPool::work_off() {
  for (;;) {
    const std::size_t left = this->left();
    if (left == 0) return;
    const CopyPace::Turn turn = pace_ == nullptr ? CopyPace::Turn{batch_, 0} : pace_->await_turn(left);
    const std::size_t first = next_leaf_.fetch_add(turn.leaves, std::memory_order_relaxed);
    if (first >= leaves_) return;
    const std::size_t last = std::min(first + turn.leaves, leaves_);
    const auto begin = pace_ == nullptr ? Clock::time_point() : Clock::now();
    if (!work_(first, last)) next_leaf_.store(SIZE_MAX / 2, std::memory_order_relaxed);
    if (pace_ != nullptr) pace_->copied(turn.layer, last - first, begin, Clock::now());
  }
}

void CopyPool::run() {
  give_way_to_training();
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
