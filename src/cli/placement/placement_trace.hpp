// Compares placement strategies by a recorded list of real faults, for `ckptctl placement`.
#pragma once

#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "placement/odds/fault_trace.hpp"
#include "placement/placement.hpp"

namespace ckpt::cli {

struct TraceStudy {
  placement::Request request;  // for each strategy in turn; with the domains of the placement's nodes
  double repair_days = 0;      // infinite: a node's memory is lost until its fault ends
  std::uint32_t numberings = 1;
  std::uint32_t rack_nodes = 0;  // nodes per synthetic rack; 0: none
  std::uint64_t seed = 1;
};

// Returns one row per strategy: at how many moments of the trace memory would not have been enough. Each figure is a
// mean over random numberings of the trace's nodes.
Result study_trace(const placement::FaultTrace& trace, const TraceStudy& study,
                   const std::vector<placement::Strategy>& strategies);

}  // namespace ckpt::cli
