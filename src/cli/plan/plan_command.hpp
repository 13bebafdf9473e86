// `ckptctl plan` says what failures will cost a job, and which protection to take. It needs no agent, except with
// --job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cli/commands.hpp"
#include "placement/odds/planner/inputs.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace ckpt::cli {

struct PlanOptions {
  planner::Inputs inputs;  // the defaults, and arguments that need no conversion
  // Arguments as on the command line. show_plan() converts them into `inputs`. `rates`: whose published failure rate to
  // take, if neither gpu_mtbf_hours nor a trace gives one. `node_share`: the share of failures that lose a node's
  // memory.
  std::string rates = "llama3";
  std::optional<double> gpu_mtbf_hours;
  std::optional<double> node_share;
  std::string state, memory, pcie, network, storage_rate;  // bytes, or bytes per second; "": the default
  bool domains_unnamed = false;                            // the job does not set the option `domain`
  bool domains_unplanned = false;                          // the plan ignores failures of whole domains
  double repair_hours = 24;
  std::string protection;  // the only one to plan; "": compare all
  bool papers = false;     // show the papers' numbers instead of a plan
  std::string plot_path;   // "": no plot
  // A running job, whose measurements the plan takes. Only used if is_given("job").
  std::string job;  // its name; "": the only job on this machine
  // Says whether the command line gave the option of this name, such as "gpus".
  std::function<bool(const char*)> is_given = [](const char*) { return false; };
  // Simulation.
  double simulated_days = 0;  // 0: as long as the trace; without a trace, no simulation
  std::uint64_t seed = 1;
  double weibull_shape = 1;
  std::string trace_path;
  std::uint32_t trace_nodes = 0;  // nodes of the traced cluster; 0: as many as failed
};

// Declares the subcommand `plan`. Parsing stores its arguments in `options` and `json`, which must outlive `app`.
CLI::App* add_plan_command(CLI::App& app, PlanOptions& options, bool& json);

// Runs the command. With --job it asks the agents in `scope`. Throws Failure or std::invalid_argument with one
// sentence.
Result show_plan(const PlanOptions& options, const Scope& scope = {});

}  // namespace ckpt::cli
