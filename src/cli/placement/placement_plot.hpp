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

// Returns a gnuplot script that draws a picture into the file `path`. Both diagrams show how probable it is that a
// checkpoint survives. Left: if 1, 2, 3 ... nodes are lost. Right: for jobs of more and more nodes.
std::string plot_script(const SurvivalPlot& plot, const std::string& path);

// Writes the plot to `path`, a .png or .svg. Throws Failure if `path` is neither, or if gnuplot is missing, fails or
// hangs.
void draw(const SurvivalPlot& plot, const std::string& path);

}  // namespace ckpt::cli
