// What a plan's rows mean for a user: options to set, and what failures cost. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "placement/odds/planner/planner.hpp"

namespace ckpt::cli {

// Per job.
struct Costs {
  double wasted_gpu_hours_per_day = 0;
  double wasted_per_month = 0;            // in the unit of the price
  double memory_lost_odds_per_month = 0;  // odds that memory does not suffice at least once
  double memory_lost_per_month = 0;       // what that costs
};
Costs costs(const planner::Inputs& inputs, const planner::Candidate& row);

// Options with values that ckptengine accepts. Empty for what cannot be set in this version.
std::vector<std::pair<std::string, std::string>> options_to_set(const planner::Candidate& row);

// What options do not say: how often to call snapshot(), what to name. A sentence each.
std::vector<std::string> things_to_do(const planner::Inputs& inputs, const planner::Candidate& row);

// Why this row, compared with the others; a sentence.
std::string why(const planner::Plan& plan, const planner::Candidate& row);

// "not available in this version", or what else keeps the row from being set; "" if nothing.
std::string obstacle(const planner::Candidate& row);

}  // namespace ckpt::cli
