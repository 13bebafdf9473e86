// TraceBuffer keeps this node's newest events for `ckptctl trace`: training's communications, captures, chunks sent and
// commits. If it is full, the oldest event makes room. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "core/types.hpp"

namespace ckpt::agent {

struct TraceEvent {
  enum class Kind { communication, iteration, bubble, copy, capture, chunk, commit };
  Kind kind = Kind::commit;
  std::int64_t begin_us = 0;  // on the monotonic clock
  std::int64_t end_us = 0;
  core::Rank rank = 0;           // only for communication, iteration, bubble, copy and capture
  CheckpointId checkpoint;       // only for capture, chunk and commit
  core::NodeId peer = 0;         // only for chunk: where it was sent
  std::string shard;             // only for chunk
  std::uint64_t size_bytes = 0;  // only for chunk
};

inline std::int64_t microseconds(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::microseconds>(at.time_since_epoch()).count();
}

class TraceBuffer {
 public:
  void add(TraceEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    if (events_.size() > events_max) events_.pop_front();
  }
  std::vector<TraceEvent> events() const {
    const std::lock_guard lock(mutex_);
    return {events_.begin(), events_.end()};
  }

 private:
  static constexpr std::size_t events_max = 8192;
  mutable std::mutex mutex_;
  std::deque<TraceEvent> events_;
};

}  // namespace ckpt::agent
