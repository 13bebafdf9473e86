// CoreQueue brings tasks from other threads to the agent's core thread, which runs them in order. EventSink takes
// events for the protocol's core.
//
// Thread-safe. Neither offer() nor post() blocks. Each has a bound on the number of waiting tasks. Above its bound,
// offer() drops the task: use it for tasks that come again anyway (messages, poll results). Use post() for tasks whose
// number is limited by something else: fetches, connections, ranks. Above its much larger bound, post() throws Failure,
// before the queue takes all memory.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "core/events.hpp"

namespace ckpt::agent {

using Task = std::function<void()>;

// The time that the core is given with events: milliseconds of the steady clock.
inline core::TimeMs core_now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count();
}

// EventSink takes events for the core, from callers that do not wait for the effects. Only the core thread calls it.
class EventSink {
 public:
  virtual ~EventSink() = default;
  // Hands the event to the core. While effects of an earlier event are being carried out, the event waits.
  virtual void handle(core::Event event) = 0;
};

class CoreQueue : public std::enable_shared_from_this<CoreQueue> {
 public:
  // The default bound of post(), in waiting tasks. The fetches, connections and ranks of a node make far fewer tasks.
  static constexpr std::size_t posted_max = 1u << 20;

  explicit CoreQueue(std::size_t offered_limit, std::size_t posted_limit = posted_max)
      : offered_limit_(offered_limit), posted_limit_(posted_limit) {}

  // Throws Failure if `posted_limit` tasks wait already.
  void post(Task task) { push(std::move(task)); }
  // Returns false and drops the task if `offered_limit` tasks wait already.
  bool offer(Task task) {
    {
      const std::lock_guard lock(mutex_);
      if (tasks_.size() >= offered_limit_) return false;
    }
    push(std::move(task));
    return true;
  }

  // Returns the next task, or nothing when the deadline has passed or the queue was closed.
  std::optional<Task> take(Deadline deadline) {
    std::unique_lock lock(mutex_);
    ready_.wait_until(lock, deadline.at(), [&] { return closed_ || !tasks_.empty(); });
    if (closed_ || tasks_.empty()) return std::nullopt;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  // Drops the waiting tasks and every later one.
  void close() {
    std::deque<Task> dropped;
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      dropped.swap(tasks_);
    }
    ready_.notify_all();
  }
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  void push(Task task) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      check(tasks_.size() < posted_limit_, "the queue of the core thread exceeds its bound");
      tasks_.push_back(std::move(task));
    }
    ready_.notify_one();
  }

  const std::size_t offered_limit_;
  const std::size_t posted_limit_;
  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Task> tasks_;
  bool closed_ = false;
};

}  // namespace ckpt::agent
