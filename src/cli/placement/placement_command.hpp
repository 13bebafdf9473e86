// `ckptctl placement` shows which nodes store what, and how likely the job recovers from lost nodes. It needs no agent.
// It reads only files that the user names.
#pragma once

#include <cstdint>
#include <string>

#include "cli/commands.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace ckpt::cli {

struct PlacementOptions {
  std::uint32_t nodes = 0;
  std::uint32_t copies = 2;
  std::string strategy = "group";  // or "all": compares all strategies in a table
  std::uint32_t lost = 1;
  std::string domains_path;
  std::string plot_path;
  // Simulation of failures that come together.
  double correlation = 0;
  std::uint64_t trials = 100'000;
  std::uint64_t seed = 1;
  // Replay of a fault trace.
  std::string trace_path;
  double repair_hours = -1;           // negative: a node's memory is lost until its fault ends
  std::uint32_t synthetic_racks = 0;  // nodes per synthetic rack; 0: none
  std::uint32_t numberings = 100;     // random numberings of the trace's nodes
};

// Declares the subcommand `placement`. Its arguments are stored in `options`, which must outlive `app`.
CLI::App* add_placement_command(CLI::App& app, PlacementOptions& options, bool& json);

// Throws Failure or std::invalid_argument with one sentence.
Result show_placement(const PlacementOptions& options);

}  // namespace ckpt::cli
