// LivenessCheck checks that a simulated job recovers after the last fault (invariants I5 and I6, docs/simulator.md).
// Within a bounded time, the job must train and commit several checkpoints. It must have all the copies and parity that
// its nodes allow, and must have freed memory that nothing needs. Once all of that holds, is_reached() is true, and the
// run ends. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "sim/event_queue.hpp"

namespace ckpt::sim {

class World;

class LivenessCheck {
 public:
  explicit LivenessCheck(World& world) : world_(world) {}

  void after_step();
  bool is_reached() const { return reached_; }
  TimeMs took_ms() const { return took_ms_; }  // from the last fault's end until is_reached()
  TimeMs calm_ms() const;                      // time since the last fault's end; 0 before it

 private:
  struct Lack {
    const char* invariant = nullptr;  // null: nothing is lacking
    std::string text;
  };
  Lack lack() const;
  Lack redundancy_lack() const;
  Lack memory_lack() const;

  World& world_;
  TimeMs quiet_since_ = -1;
  TimeMs next_look_ = 0;
  std::uint64_t commits_before_ = 0;
  TimeMs took_ms_ = 0;
  bool reached_ = false;
};

}  // namespace ckpt::sim
