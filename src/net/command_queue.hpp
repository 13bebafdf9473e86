// CommandQueue passes commands, in order, to a thread that waits on file descriptors. The queue's own descriptor is
// readable while the queue is not empty.
//
// The queue is bounded. Transport::send() limits the messages in it. Of other commands, such as fetches and new
// addresses, there are never nearly as many. If the queue is full nevertheless, push() throws Failure.
//
// Thread-safe, except run_all(), which only one thread calls.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/error.hpp"
#include "base/unique_fd.hpp"

namespace ckpt::net {

class CommandQueue {
 public:
  // Far more commands than callers can have in the queue at once.
  static constexpr std::size_t commands_max = 1u << 20;

  explicit CommandQueue(std::size_t limit = commands_max)
      : limit_(limit), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wake_) throw_errno(CKPT_ERR_SYSTEM, "cannot create an eventfd");
  }

  int fd() const { return wake_.get(); }
  bool empty() const { return !any_.load(std::memory_order_acquire); }

  void push(std::function<void()> command) {
    {
      const std::lock_guard lock(mutex_);
      check(commands_.size() < limit_, "the queue of a network thread exceeds its bound");
      commands_.push_back(std::move(command));
      any_.store(true, std::memory_order_release);
    }
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);  // a full counter is readable too
  }

  void run_all() {
    std::vector<std::function<void()>> commands;
    {
      const std::lock_guard lock(mutex_);
      commands.swap(commands_);
      any_.store(false, std::memory_order_release);
    }
    std::uint64_t count = 0;
    [[maybe_unused]] const auto read = ::read(wake_.get(), &count, sizeof count);
    for (const auto& command : commands) command();
  }

 private:
  const std::size_t limit_;
  UniqueFd wake_;
  std::mutex mutex_;
  std::vector<std::function<void()>> commands_;
  std::atomic<bool> any_{false};
};

}  // namespace ckpt::net
