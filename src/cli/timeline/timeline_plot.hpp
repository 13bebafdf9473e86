// Draws a timeline with gnuplot for `ckptctl trace`, as figure 5 of GEMINI does.
#pragma once

#include <string>

#include "cli/timeline/timeline.hpp"

namespace ckpt::cli {

// Returns the gnuplot script that draws `path`. Time goes from left to right. Each node has a band, and in it each
// track has a strip of its own. Two kinds of tracks have none: idle spans are not drawn, and the ends of iterations are
// lines across the band. `timeline` must have at least one node, and all must be of one job. Throws Failure if `path`
// is neither a .png nor a .svg.
std::string timeline_script(const Timeline& timeline, const std::string& path);

}  // namespace ckpt::cli
