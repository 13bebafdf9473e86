// The standby nodes of a simulated cluster. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <queue>
#include <vector>

namespace ckpt::planner {

class StandbyPool {
 public:
  explicit StandbyPool(std::uint32_t nodes) : available_(nodes), has_nodes_(nodes > 0) {}

  // Takes `count` nodes for those lost at `now_s`, which are repaired at `repaired_at_s`. Returns when the last of them
  // is there. Without standby nodes, that is now: somebody orders new ones.
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
