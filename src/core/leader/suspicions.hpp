// Suspicions are what the leader concludes from all agents' reports: who holds training up (core/suspicions.hpp). Pure.
#pragma once

#include "core/leader/job_view.hpp"
#include "core/suspicions.hpp"

namespace ckpt::core {

class Suspicions {
 public:
  // Draws the conclusion anew. Agents notice one after the other, so a conclusion counts once it has stayed the same
  // for a moment. A death counts at once, and so does the end of a suspicion. `may_miss_nodes`: whether members that
  // are not present count as silent. False while a new leader has not heard all of them yet. `gap_ms`: how long the
  // leader delays its own work.
  void reconcile(const JobView& view, bool may_miss_nodes, TimeMs gap_ms, TimeMs now);
  const Suspicion& current() const { return current_; }

 private:
  Suspicion current_;
  Suspicion next_;
  TimeMs lasted_ms_ = 0;  // next_, while the leader looked
  TimeMs looked_at_ = 0;
};

}  // namespace ckpt::core
