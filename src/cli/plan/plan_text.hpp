// A plan as a table for people, and as JSON for programs. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "placement/odds/planner/planner.hpp"
#include "placement/odds/planner/simulation.hpp"

namespace ckpt::cli {

// Everything that is shown of one plan.
struct PlanView {
  planner::Inputs inputs;
  std::string rates_source;
  planner::Plan plan;
  planner::Plan more_failures;   // three times as many
  planner::Plan fewer_failures;  // a third
  std::vector<planner::Lever> levers;
  std::vector<std::optional<planner::Simulated>> simulated;  // by row; empty if nobody asked for it
};

std::string plan_text(const PlanView& view);
nlohmann::json plan_json(const PlanView& view);

}  // namespace ckpt::cli
