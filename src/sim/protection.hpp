// Protection checks invariant I7 in a simulated run: nobody is told that the job is protected while its commits are
// overdue. Not thread-safe.
#pragma once

#include <cstdint>
#include <utility>

#include "sim/event_queue.hpp"

namespace ckpt::sim {

class World;
struct Machine;

class Protection {
 public:
  explicit Protection(World& world) : world_(world) {}

  void after_step();

 private:
  void follow(TimeMs now);
  void judge(const Machine& machine, TimeMs now) const;

  World& world_;
  TimeMs next_look_ = 0;
  std::uint64_t commits_ = 0;
  std::pair<std::uint64_t, bool> incarnation_;  // the incarnation in the store, and whether it has begun
  TimeMs quiet_since_ = 0;                      // the newest commit, or a later beginning of an incarnation
  TimeMs longest_iteration_ms_ = 0;             // longest time that any rank waited for the next iteration
};

}  // namespace ckpt::sim
