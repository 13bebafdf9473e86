// Writes a plan as a table for people, and as JSON for programs. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "placement/odds/planner/planner.hpp"
#include "placement/odds/planner/simulation.hpp"

namespace ckpt::cli {

// What plan_text() and plan_json() show.
struct PlanView {
  planner::Inputs inputs;
  std::string rates_source;  // where the failure rate comes from, for people
  planner::Plan plan;
  planner::Plan more_failures;   // the plan for three times as many failures
  planner::Plan fewer_failures;  // the plan for a third of the failures
  std::vector<planner::Lever> levers;
  std::vector<std::optional<planner::Simulated>> simulated;  // by row; empty if no simulation was asked for
};

std::string plan_text(const PlanView& view);
nlohmann::json plan_json(const PlanView& view);

}  // namespace ckpt::cli
