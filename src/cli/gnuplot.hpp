// Draws plots for ckptctl with the program gnuplot, which runs as a separate process.
#pragma once

#include <string>

namespace ckpt::cli {

// The text as a single-quoted gnuplot string, on one line.
std::string gnuplot_quoted(const std::string& text);

// The first lines of a script. Throws Failure if `path` ends neither in .png nor in .svg.
std::string gnuplot_output(const std::string& path, int width_px, int height_px);

// Runs gnuplot to draw `path`, which the script names as its output. Throws Failure if `path` cannot be written, or if
// gnuplot is missing, fails or hangs.
void run_gnuplot(const std::string& script, const std::string& path);

}  // namespace ckpt::cli
