// Simulates a job on a cluster, from failure to failure. Pure.
//
// Training leaves states behind at fixed intervals: captures in memory, checkpoints on storage, and the beginning of
// each iteration on the GPUs of live replicas. After a failure the job goes back to the newest state that can be
// restored without the lost nodes. Unlike the formulas, the simulation applies losses to the real placement, and its
// standby nodes may run out.
#pragma once

#include <cstdint>

#include "placement/odds/planner/failures.hpp"
#include "placement/odds/planner/model.hpp"

namespace ckpt::planner {

struct Simulated {
  double elapsed_s = 0;
  double effective_time = 0;  // share of the elapsed time that was not wasted
  Split split;
  std::uint64_t failures = 0;
  std::uint64_t storage_losses = 0;  // recoveries in which the state came from storage
  double waited_s = 0;               // how long the job waited for standby nodes
};

// Simulates `elapsed_s` seconds. Takes O(1) per failure. Uses `inputs` only for the numbers of nodes and standby nodes.
Simulated simulate(const Inputs& inputs, const Holdings& holdings, const Behavior& behavior, FailureSource& failures,
                   double elapsed_s);

}  // namespace ckpt::planner
