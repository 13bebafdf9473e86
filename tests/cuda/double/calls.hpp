// Lets calls of the test double of libcuda.so.1 hang. Real calls hang if another thread has a lock of the driver while
// it waits for the GPU. Thread-safe.
#pragma once

#include <condition_variable>
#include <mutex>

#include "control.h"

namespace cuda_double {

class Calls {
 public:
  // What every call that may need the lock begins with.
  void enter() {
    std::unique_lock lock(mutex_);
    ++inside_;
    changed_.wait(lock, [this] { return how_ == CKPT_DOUBLE_CALLS_RETURN; });
    --inside_;
  }
  std::uint64_t held() {
    const std::lock_guard lock(mutex_);
    return inside_;
  }
  void hold(ckpt_double_calls how) {
    const std::lock_guard lock(mutex_);
    how_ = how;
    changed_.notify_all();
  }
  // A kernel of a library has.
  void kernel_ended() {
    const std::lock_guard lock(mutex_);
    if (how_ == CKPT_DOUBLE_CALLS_WAIT_FOR_KERNEL) how_ = CKPT_DOUBLE_CALLS_RETURN;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  ckpt_double_calls how_ = CKPT_DOUBLE_CALLS_RETURN;
  std::uint64_t inside_ = 0;
};

}  // namespace cuda_double
