// Simulates the rows of a plan. The failures are random, or come from a recorded trace.
#pragma once

#include <optional>
#include <vector>

#include "cli/plan/plan_command.hpp"
#include "placement/odds/fault_trace.hpp"
#include "placement/odds/planner/planner.hpp"
#include "placement/odds/planner/simulation.hpp"

namespace ckpt::cli {

struct PlanTrace {
  placement::FaultTrace trace;
  std::uint32_t nodes = 0;  // of the cluster in which the trace was recorded
};
// Reads the trace that the options name. Returns nothing if they name none. Throws Failure or std::invalid_argument.
std::optional<PlanTrace> read_trace(const PlanOptions& options);

// Returns one entry per row of the plan; the entry is empty for a row without figures. Returns an empty list if the
// options ask for no simulation.
std::vector<std::optional<planner::Simulated>> simulate_rows(const PlanOptions& options,
                                                             const std::optional<PlanTrace>& trace,
                                                             const planner::Inputs& inputs,
                                                             const planner::Planner& planner,
                                                             const planner::Plan& plan);

}  // namespace ckpt::cli
