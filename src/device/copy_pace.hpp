// CopyPace tells the threads of a CopyPool when to copy. Its functions are called by the pool's threads, by several at
// a time. They must not throw.
#pragma once

#include <cstddef>

#include "base/clock.hpp"

namespace ckpt::device {

class CopyPace {
 public:
  virtual ~CopyPace() = default;

  struct Turn {
    std::size_t leaves = 0;  // how many the thread may take, 1 or more
    unsigned layer = 0;      // goes back to copied()
  };
  // Waits until this thread may copy. `left`: leaves that no thread has taken, at least 1. Returns soon after hurry().
  virtual Turn await_turn(std::size_t left) = 0;
  // A thread has copied `leaves` in this time, after a turn.
  virtual void copied(unsigned layer, std::size_t leaves, Clock::time_point begin, Clock::time_point end) = 0;
  // Any thread. From now on await_turn() does not wait, until the next job begins.
  virtual void hurry() = 0;
};

}  // namespace ckpt::device
