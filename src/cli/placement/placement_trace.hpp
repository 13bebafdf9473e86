// Compares placement strategies for `ckptctl placement`, by replaying a recorded list of real faults.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "placement/odds/fault_trace.hpp"
#include "placement/placement.hpp"

namespace ckpt::cli {

struct TraceStudy {
  placement::Request request;    // the placement to study; each strategy in turn replaces the one in it
  double repair_days = 0;        // how long a lost node's memory is lost; infinite: until its fault ends
  std::uint32_t numberings = 1;  // how many random mappings of the trace's nodes to the job's nodes to average over
  std::uint32_t rack_nodes = 0;  // nodes per synthetic rack; 0: no racks
  std::uint64_t seed = 1;
};

// Returns one row per strategy. It says at how many moments the memory of the remaining nodes would not have held all
// shards. A moment is a time at which at least one node of the trace failed. Each figure is a mean over
// study.numberings mappings.
Result study_trace(const placement::FaultTrace& trace, const TraceStudy& study,
                   const std::vector<placement::Strategy>& strategies);

}  // namespace ckpt::cli
