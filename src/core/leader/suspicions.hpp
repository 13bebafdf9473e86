// Suspicions are what the leader concludes from all agents' reports: who holds training up (core/suspicions.hpp). Pure.
#pragma once

#include "core/leader/job_view.hpp"
#include "core/suspicions.hpp"

namespace ckpt::core {

class Suspicions {
 public:
  // Draws the conclusion anew. Agents notice one after the other, so a conclusion counts once it has stayed the same
  // for a moment. A death counts at once, and so does the end of a suspicion. `may_miss_nodes`: whether members that
  // are not present count as silent. False while a new leader has not heard all of them yet.
  void reconcile(const JobView& view, bool may_miss_nodes, TimeMs now);
  const Suspicion& current() const { return current_; }

 private:
  Suspicion current_;
  Suspicion next_;
  TimeMs since_ = 0;  // of next_
};

}  // namespace ckpt::core
