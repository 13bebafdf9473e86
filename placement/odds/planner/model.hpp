// Computes by formulas what share of the time a job wastes with a setting (setting.hpp). The formulas assume that
// failures are independent of each other and come at a constant rate. Pure.
//
// There are two forms. The first-order form adds up what each failure costs (the formulas of the JIT paper, with our
// terms). The renewal form also counts failures during a recovery and while work is done again. It is exact if all
// failures go back to states of one source (replica, memory or storage). If there are several sources, it assumes that
// the interval between two states of an older source consists of whole intervals of the newer source.
#pragma once

#include "placement/odds/planner/behavior.hpp"

namespace ckpt::planner {

// What shares of the elapsed time are wasted, by cause.
struct Split {
  double steady = 0;     // stalls, and the time by which iterations are longer
  double detection = 0;  // from a failure until somebody acts
  double restart = 0;    // from when somebody acts until training goes on
  double redone = 0;     // work that is done again
};

struct Appraisal {
  double effective_time = 0;        // share of the elapsed time that is not wasted, by the renewal form
  Split split;                      // what the wasted time was spent on, by the renewal form
  double first_order_wasted = 0;    // w / (1 + w) by the first-order form: w is wasted time per second of training
  double failures_per_s = 0;        // of all kinds
  double storage_losses_per_s = 0;  // failures after which the state comes from storage
};

using Rates = ByFault<BySource<double>>;  // as failure_rates() returns them

Appraisal appraise(const Behavior& behavior, const Rates& rates);

// JIT paper, equation 3: how many checkpoints per second are best, if each costs `overhead_s` seconds.
double best_frequency_per_s(double failures_per_s, double overhead_s);

}  // namespace ckpt::planner
