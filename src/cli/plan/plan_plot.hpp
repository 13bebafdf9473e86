// Draws a plan with gnuplot: wasted time per failure as in figure 10 of GEMINI, effective time as in figure 15 of
// GEMINI.
#pragma once

#include <string>

#include "placement/odds/planner/planner.hpp"

namespace ckpt::cli {

// Returns the gnuplot script that draws `path`. Left: wasted time against the number of nodes lost at once. Middle:
// effective time against failures per day. Right: effective time against the number of GPUs.
std::string plan_plot_script(const planner::Inputs& inputs, const planner::Plan& plan, const std::string& path);

// Writes the plot to `path`, a .png or .svg. Throws Failure if `path` is neither, or if gnuplot is missing, fails or
// hangs.
void draw_plan(const planner::Inputs& inputs, const planner::Plan& plan, const std::string& path);

}  // namespace ckpt::cli
