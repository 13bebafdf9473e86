// `ckptctl placement` shows which nodes would store which pieces, and how likely a job recovers from lost nodes. It
// needs no agent. It reads only files that the user names.
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
  std::string strategy = "group";  // "all": compares all strategies in a table
  std::uint32_t lost = 1;          // nodes lost at once
  std::string domains_path;        // file of failure domains; empty: none
  std::string plot_path;           // a .png or .svg; empty: no plot
  // Simulation of losses that hit one failure domain.
  double correlation = 0;  // probability that a lost node is in the domain of the one before; 0: no simulation
  std::uint64_t trials = 100'000;
  std::uint64_t seed = 1;
  // Replay of a fault trace.
  std::string trace_path;             // empty: none
  double repair_hours = -1;           // how long a lost node's memory is lost; negative: until its fault ends
  std::uint32_t synthetic_racks = 0;  // nodes per synthetic rack; 0: no racks
  std::uint32_t numberings = 100;  // how many random mappings of the trace's nodes to the job's nodes to average over
};

// Declares the subcommand `placement`. Parsing stores its arguments in `options` and `json`, which must outlive `app`.
CLI::App* add_placement_command(CLI::App& app, PlacementOptions& options, bool& json);

// Runs the command. Throws Failure or std::invalid_argument with one sentence.
Result show_placement(const PlacementOptions& options);

}  // namespace ckpt::cli
