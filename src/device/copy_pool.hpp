// Threads that work through the leaves of one piece at a time, in batches taken from a shared counter.
//
// Used by one thread. Starting a job costs one futex wake and allocates nothing; the threads take no lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.hpp"

namespace ckpt::device {

class CopyPool {
 public:
  // Works on leaves [first, last). Called on any of the threads; does not throw. False: the rest need not be done.
  using Work = std::function<bool(std::size_t first_leaf, std::size_t last_leaf)>;

  explicit CopyPool(unsigned threads);
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // The job before must be over: wait() returned true, or cancel() returned.
  void start(std::size_t leaves, Work work);
  // Until the job is done, or the deadline has passed (false).
  bool wait(Deadline deadline) const;
  // Takes no further batch; returns when no thread is at work any more.
  void cancel();

 private:
  void run();
  void work_off();

  // The job: written while no thread works, published by `started_`.
  Work work_;
  std::size_t leaves_ = 0;
  std::size_t batch_ = 1;
  alignas(64) std::atomic<std::size_t> next_leaf_{0};
  alignas(64) std::atomic<std::uint32_t> started_{0};  // jobs so far; futex
  std::atomic<std::uint32_t> working_{0};              // threads that are not through with the job; futex
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace ckpt::device
