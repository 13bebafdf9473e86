// Suspicions is the part of the leader that finds the ranks that hold training up, from all agents' reports
// (core/suspicions.hpp). Pure.
#pragma once

#include "core/leader/job_view.hpp"
#include "core/suspicions.hpp"

namespace ckpt::core {

class Suspicions {
 public:
  // Judges again. Agents notice trouble one after the other, so current() changes only once the new suspicion has
  // stayed the same for a moment. A death counts at once, and so does the end of a suspicion. `is_halted`: whether the
  // incarnation has a halt. `may_miss_nodes`: whether members that are not present count as silent. False while a new
  // leader has not heard all of them yet. `gap_ms`: time from one reconciliation of the leader to the next.
  void reconcile(const JobView& view, bool is_halted, bool may_miss_nodes, TimeMs gap_ms, TimeMs now);
  const Suspicion& current() const { return current_; }

 private:
  Suspicion current_;
  Suspicion next_;
  TimeMs lasted_ms_ = 0;  // how long next_ has stayed the same; pauses of the leader do not count
  TimeMs looked_at_ = 0;
};

}  // namespace ckpt::core
