// Draws with gnuplot how likely a job survives the loss of nodes, as figure 9 of GEMINI does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/pattern.hpp"

namespace ckpt::cli {

struct SurvivalPlot {
  std::uint32_t nodes = 0;
  std::uint32_t copies = 0;
  std::vector<placement::Strategy> strategies;
};

// Returns the gnuplot script that draws `path`. Left: survival against the number of lost nodes. Right: survival
// against the number of nodes.
std::string plot_script(const SurvivalPlot& plot, const std::string& path);

// Writes the plot to `path`, a .png or .svg. Throws Failure if `path` is neither, or if gnuplot is missing, fails or
// hangs.
void draw(const SurvivalPlot& plot, const std::string& path);

}  // namespace ckpt::cli
