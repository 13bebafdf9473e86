// Draws a timeline with gnuplot for `ckptctl trace`, as figure 5 of GEMINI does.
#pragma once

#include <string>

#include "cli/timeline/timeline.hpp"

namespace ckpt::cli {

// The gnuplot script: over time, a band for each node, and in it a lane for each track. `timeline` has nodes, all of
// one job. Throws Failure if `path` is neither .png nor .svg.
std::string timeline_script(const Timeline& timeline, const std::string& path);

}  // namespace ckpt::cli
