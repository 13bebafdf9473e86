// Halts is the part of the leader that halts an incarnation whose training stands still (core/halts.hpp). Pure.
#pragma once

#include "core/halts.hpp"
#include "core/leader/job_view.hpp"

namespace ckpt::core {

class Halts {
 public:
  // Makes a halt if the suspicion calls for one, and follows how far the ranks are. It decides after halt_decision_ms,
  // and ends after halt_ms, whoever does not answer. Before the leader `has_listened` to all nodes it does nothing,
  // because a former leader's halt may not have been reported yet.
  void reconcile(const JobView& view, const Suspicion& suspicion, bool has_listened, TimeMs now);
  // Its incarnation is 0 if there is none.
  const Halt& current() const { return current_; }

 private:
  Halt current_;
  TimeMs since_ = 0;
};

}  // namespace ckpt::core
