// StandbyPool counts the standby nodes of a simulated cluster. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <vector>

namespace ckpt::planner {

class StandbyPool {
 public:
  explicit StandbyPool(std::uint32_t nodes) : available_(nodes), has_nodes_(nodes > 0) {}

  // Takes `count` standby nodes for nodes lost at `now_s`. The lost nodes are repaired at `repaired_at_s`, and are then
  // standby nodes. Returns the time at which all `count` nodes are available. If the pool was made with 0 nodes,
  // returns `now_s`: lost nodes are then replaced by new ones, and Behavior::restart_s includes the time for that
  // (Cluster::replace_s).
  double take(std::size_t count, double now_s, double repaired_at_s) {
    if (!has_nodes_) return now_s;
    for (std::size_t i = 0; i < count; ++i) returns_s_.push(repaired_at_s);
    double ready_s = now_s;
    for (std::size_t i = 0; i < count; ++i) {
      while (!returns_s_.empty() && (returns_s_.top() <= now_s || available_ == 0)) {
        ready_s = std::max(ready_s, returns_s_.top());
        returns_s_.pop();
        ++available_;
      }
      --available_;
    }
    return ready_s;
  }

 private:
  std::uint64_t available_;
  bool has_nodes_;
  std::priority_queue<double, std::vector<double>, std::greater<>> returns_s_;
};

}  // namespace ckpt::planner
