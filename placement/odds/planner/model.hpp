// The formulas: what share of the time a setting wastes, for failures that come independently of each other and at a
// constant rate. Pure.
//
// Two forms. The first-order form adds up what each failure costs (the formulas of the JIT paper, with our terms). The
// renewal form also counts failures during recovery and during work that is redone. It is exact if all failures go back
// to states of one source (replica, memory or storage). Otherwise it assumes that the time between two states of an
// older source consists of such times of the newer source.
#pragma once

#include "placement/odds/planner/behavior.hpp"

namespace ckpt::planner {

// Shares of the elapsed time.
struct Split {
  double steady = 0;     // stalls, and iterations that are longer
  double detection = 0;  // from a failure until somebody acts
  double restart = 0;    // until training goes on
  double redone = 0;     // work done again
};

struct Appraisal {
  double effective_time = 0;        // share of the elapsed time that trains; the rest is wasted
  Split split;                      // the renewal form
  double first_order_wasted = 0;    // the first-order form, w / (1 + w)
  double failures_per_s = 0;        // of all kinds
  double storage_losses_per_s = 0;  // failures after which the state comes from storage
};

using Rates = ByFault<BySource<double>>;

Appraisal appraise(const Behavior& behavior, const Rates& rates);

// JIT, equation 3: the best frequency of checkpoints that cost `overhead_s` each, in checkpoints per second.
double best_frequency_per_s(double failures_per_s, double overhead_s);

}  // namespace ckpt::planner
