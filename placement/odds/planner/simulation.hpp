// Simulates a job on a cluster, from failure to failure. Pure.
//
// Training passes states at fixed distances: captures into memory, checkpoints on storage, and the begin of each
// iteration, which live replicas hold. A failure takes the job back to the newest state that the lost nodes leave. Two
// things are here that the formulas do not know: losses meet the real placement, and standby nodes may run out.
#pragma once

#include <cstdint>

#include "placement/odds/planner/failures.hpp"
#include "placement/odds/planner/model.hpp"

namespace ckpt::planner {

struct Simulated {
  double elapsed_s = 0;
  double effective_time = 0;
  Split split;
  std::uint64_t failures = 0;
  std::uint64_t storage_losses = 0;  // failures after which the state came from storage
  double waited_s = 0;               // for standby nodes
};

// Takes O(1) per failure. Uses `inputs` for the standby nodes alone.
Simulated simulate(const Inputs& inputs, const Holdings& holdings, const Behavior& behavior, FailureSource& failures,
                   double elapsed_s);

}  // namespace ckpt::planner
