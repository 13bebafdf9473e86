// Simulates the rows of a plan, with failures at random or from a trace.
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
  std::uint32_t nodes = 0;  // of the cluster that it was taken from
};
// Reads the trace that the options name, if they name one. Throws Failure or std::invalid_argument.
std::optional<PlanTrace> read_trace(const PlanOptions& options);

// By row. Empty if the options ask for no simulation.
std::vector<std::optional<planner::Simulated>> simulate_rows(const PlanOptions& options,
                                                             const std::optional<PlanTrace>& trace,
                                                             const planner::Inputs& inputs,
                                                             const planner::Planner& planner,
                                                             const planner::Plan& plan);

}  // namespace ckpt::cli
