// Says what a row of a plan means for a user: which options to set, and what failures then cost. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "placement/odds/planner/planner.hpp"

namespace ckpt::cli {

// What failures cost one job.
struct Costs {
  double wasted_gpu_hours_per_day = 0;
  double wasted_per_month = 0;            // the same per month, in the currency of gpu_hour_price
  double memory_lost_odds_per_month = 0;  // odds that a restore needs storage at least once, because memory was lost
  double memory_lost_per_month = 0;       // what these restores cost per month, in the same currency
};
Costs costs(const planner::Inputs& inputs, const planner::Candidate& row);

// Returns the options and values that make ckptengine work as in this row. Empty if no options of this version do.
std::vector<std::pair<std::string, std::string>> options_to_set(const planner::Candidate& row);

// Returns what a user must do besides setting these options, e.g. how often to call snapshot(). A sentence each.
std::vector<std::string> things_to_do(const planner::Inputs& inputs, const planner::Candidate& row);

// Returns a sentence that says how much better this row is than the best of the other rows whose options can be set.
std::string why(const planner::Plan& plan, const planner::Candidate& row);

// Returns why the row cannot be set, e.g. "for comparison". "" if it can be set.
std::string obstacle(const planner::Candidate& row);

}  // namespace ckpt::cli
