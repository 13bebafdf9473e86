// Halts is the part of the leader that halts an incarnation whose training stands still (core/halts.hpp). Pure.
#pragma once

#include "core/halts.hpp"
#include "core/leader/job_view.hpp"

namespace ckpt::core {

class Halts {
 public:
  // Makes a halt if the suspicion calls for one, if a rank reports trouble, or if `is_succeeded`: the next incarnation
  // waits for this one to end. Then follows how far the ranks are. It decides after halt_decision_ms, and ends after
  // halt_ms, whoever does not answer.
  // Before the leader `has_listened` to all nodes it does nothing, because a former leader's halt may not have been
  // reported yet.
  void reconcile(const JobView& view, const Suspicion& suspicion, bool is_succeeded, bool has_listened, TimeMs now);
  // False while ranks of this incarnation run, or may run, that are not halted yet: what they have would be lost if the
  // next one began. Always true if the leader halts no job.
  bool may_end(const JobView& view, bool has_listened, TimeMs now) const;
  // Its incarnation is 0 if there is none.
  const Halt& current() const { return current_; }

 private:
  Halt current_;
  TimeMs since_ = 0;
};

}  // namespace ckpt::core
