// CopyPool owns the threads that copy and digest host memory. All of them work on one piece at a time. Each thread
// takes the next few leaves of the piece from a shared counter.
//
// One thread uses the pool. Starting a job costs one futex wake and allocates nothing. The threads take no lock of the
// pool; a CopyPace may take one for each turn.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "device/copy_pace.hpp"

namespace ckpt::device {

class CopyPool {
 public:
  // Works on leaves [first, last). Runs on any of the threads and must not throw. Returns false to stop the job: then
  // no thread begins further leaves.
  using Work = std::function<bool(std::size_t first_leaf, std::size_t last_leaf)>;

  explicit CopyPool(unsigned threads);
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // The previous job must be over: wait() returned true, or cancel() returned. With a `pace`, the threads work when it
  // lets them, until hurry(). It must outlive the pool.
  void start(std::size_t leaves, Work work, CopyPace* pace = nullptr);
  // From now on the threads work on the job without a pause.
  void hurry() const;
  // Waits until the job is done. Returns false if the deadline passes first. Call hurry() before it.
  bool wait(Deadline deadline) const;
  // Stops the job. Returns when no thread works on it any more.
  void cancel();

 private:
  void run();
  void work_off();
  std::size_t left() const;

  // The job: written while no thread works, published by `started_`.
  Work work_;
  std::size_t leaves_ = 0;
  std::size_t batch_ = 1;
  CopyPace* pace_ = nullptr;
  alignas(64) std::atomic<std::size_t> next_leaf_{0};
  alignas(64) std::atomic<std::uint32_t> started_{0};  // jobs so far; futex
  std::atomic<std::uint32_t> working_{0};              // threads that have not finished the job; futex
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace ckpt::device
