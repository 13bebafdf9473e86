// CommitRateCheck checks a part of invariant I6 (docs/simulator.md) in a simulated run: while nothing is wrong, the job
// commits every few iterations, whatever happened before. Not thread-safe.
#pragma once

#include <cstdint>

#include "sim/event_queue.hpp"

namespace ckpt::sim {

class World;

class CommitRateCheck {
 public:
  explicit CommitRateCheck(World& world) : world_(world) {}

  void after_step();
  TimeMs slowest_ms() const { return slowest_ms_; }  // longest time without a commit while nothing was wrong

 private:
  bool is_well() const;
  TimeMs bound_ms() const;

  World& world_;
  TimeMs next_look_ = 0;
  TimeMs waits_since_ = 0;  // since when nothing has been wrong and no commit has come
  std::uint64_t commits_ = 0;
  TimeMs slowest_ms_ = 0;
};

}  // namespace ckpt::sim
