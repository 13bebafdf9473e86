// LeavableThread is a thread that may hang for ever in another library or in the kernel. Its owner waits until a
// deadline for the thread to end, and then goes on without it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/thread.hpp"

namespace ckpt {

class LeavableThread {
 public:
  // Starts the thread, which calls `body`. `body` must not throw. It must own all that it uses, because the thread may
  // outlive this object. Throws std::system_error if the thread cannot start.
  template <class Body>
  LeavableThread(const char* name, Body body) : end_(std::make_shared<End>()) {
    thread_ = start_thread(name, [own = std::optional<Body>(std::move(body)), end = end_]() mutable {
      (*own)();
      own.reset();  // destroy what the body owns before join() learns of the end
      end->notify();
    });
  }
  // Detaches the thread if it still runs.
  ~LeavableThread() {
    if (thread_.joinable()) thread_.detach();
  }
  LeavableThread(const LeavableThread&) = delete;
  LeavableThread& operator=(const LeavableThread&) = delete;

  // Waits until the thread has ended, at most until the deadline. Returns whether it has ended.
  bool join(Deadline deadline) {
    if (thread_.joinable() && end_->wait(deadline)) thread_.join();
    return !thread_.joinable();
  }

 private:
  class End {
   public:
    void notify() {
      const std::lock_guard lock(mutex_);
      is_told_ = true;
      changed_.notify_all();
    }
    bool wait(Deadline deadline) {
      std::unique_lock lock(mutex_);
      return changed_.wait_until(lock, deadline.at(), [this] { return is_told_; });
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_told_ = false;
  };

  std::shared_ptr<End> end_;
  std::thread thread_;
};

}  // namespace ckpt
