// EventQueue is the simulator's clock. It runs actions in the order of their times, and its time is that of the action
// that runs. Actions of the same time run in the order in which they were scheduled. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/types.hpp"

namespace ckpt::sim {

using core::TimeMs;

class EventQueue {
 public:
  using Action = std::function<void()>;

  TimeMs now() const { return now_; }
  std::uint64_t steps() const { return steps_; }  // how many actions have run

  // Schedules an action. A negative delay counts as 0, so no action runs in the past.
  void after(TimeMs delay_ms, Action action);

  // Runs the next action. Returns false if there is none.
  bool step();

 private:
  struct Entry {
    TimeMs time = 0;
    std::uint64_t sequence = 0;
    Action action;
  };
  static bool later(const Entry& left, const Entry& right);

  std::vector<Entry> heap_;
  TimeMs now_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace ckpt::sim
