// Draws plots for ckptctl with the program gnuplot, which runs as a separate process.
#pragma once

#include <string>

namespace ckpt::cli {

// Returns the text as a single-quoted gnuplot string, on one line.
std::string gnuplot_quoted(const std::string& text);

// Returns the first lines of a script, which select the file format and the file `path`. Throws Failure if `path` ends
// neither in .png nor in .svg.
std::string gnuplot_output(const std::string& path, int width_px, int height_px);

// Runs gnuplot on the script. `path` is the file that the script writes. Throws Failure if `path` cannot be written, or
// if gnuplot is missing, fails or hangs.
void run_gnuplot(const std::string& script, const std::string& path);

}  // namespace ckpt::cli
