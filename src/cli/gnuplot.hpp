// Plots are drawn by gnuplot, in a process of its own.
#pragma once

#include <string>

namespace ckpt::cli {

// As a single-quoted string of gnuplot's, on one line.
std::string gnuplot_quoted(const std::string& text);

// The lines with which a script begins. Throws Failure for a path that ends neither in .png nor in .svg.
std::string gnuplot_output(const std::string& path, int width_px, int height_px);

// Has gnuplot draw `path`, which the script names as its output. Throws Failure when `path` cannot be written, and when
// gnuplot is missing, fails or hangs.
void run_gnuplot(const std::string& script, const std::string& path);

}  // namespace ckpt::cli
