// Draws a timeline with gnuplot for `ckptctl trace`, as figure 5 of GEMINI does.
#pragma once

#include <string>

#include "cli/timeline/timeline.hpp"

namespace ckpt::cli {

// Returns the gnuplot script that draws `path`. Over time, it shows a band for each node, with a lane for each track.
// `timeline` must have at least one node, and all must be of one job. Throws Failure if `path` is neither a .png nor a
// .svg.
std::string timeline_script(const Timeline& timeline, const std::string& path);

}  // namespace ckpt::cli
