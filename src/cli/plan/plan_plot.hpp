// Draws a plan with gnuplot: wasted time per failure as in GEMINI's figure 10, and effective time as in its figure 15.
#pragma once

#include <string>

#include "placement/odds/planner/planner.hpp"

namespace ckpt::cli {

// The script. Left: what a failure wastes, by how many nodes are lost at once. Middle and right: effective time against
// failures per day, and against the number of GPUs.
std::string plan_plot_script(const planner::Inputs& inputs, const planner::Plan& plan, const std::string& path);

// Writes `path`, a .png or .svg. Throws Failure if it is neither, or if gnuplot is missing, fails or hangs.
void draw_plan(const planner::Inputs& inputs, const planner::Plan& plan, const std::string& path);

}  // namespace ckpt::cli
