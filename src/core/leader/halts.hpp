// Halts is the part of the leader that halts an incarnation whose training stands still (core/halts.hpp). Pure.
#pragma once

#include "core/halts.hpp"
#include "core/leader/job_view.hpp"

namespace ckpt::core {

class Halts {
 public:
  // Makes a halt if the suspicion calls for one, if a rank reports trouble, or if the next incarnation waits for this
  // one to end (`is_succeeded`). Then updates the halt from the ranks' answers. After halt_decision_ms it decides the
  // iteration, and after halt_ms it ends the halt, even if ranks have not answered. Before the leader `has_listened` to
  // all nodes it does nothing, because a former leader's halt may not have been reported yet.
  void reconcile(const JobView& view, const Suspicion& suspicion, bool is_succeeded, bool has_listened, TimeMs now);
  // True if the next incarnation may begin. False while ranks of this incarnation run, or may run, and their halt is
  // not over: if it began now, their newest state would be lost. Always true without on_suspicion=halt.
  bool may_end(const JobView& view, bool has_listened, TimeMs now) const;
  // The halt of this incarnation. The field `incarnation` is 0 if there is none.
  const Halt& current() const { return current_; }

 private:
  Halt current_;
  TimeMs since_ = 0;
};

}  // namespace ckpt::core
