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
  planner::Inputs inputs;  // with the defaults
  // As on the command line; they go into `inputs`.
  std::string rates = "llama3";
  std::optional<double> gpu_mtbf_hours;
  std::optional<double> node_share;
  std::string state, memory, pcie, network, storage_rate;  // bytes; "": the default
  bool domains_unnamed = false;
  bool domains_unplanned = false;  // whole domains fail in the simulation alone
  double repair_hours = 24;
  std::string protection;  // "": compare all
  bool papers = false;     // show the papers' numbers instead of a plan
  std::string plot_path;
  // A running job.
  std::string job;  // if is_given("job"): its name, or "" for the only job on this machine
  std::function<bool(const char*)> is_given = [](const char*) {
    return false;
  };  // on the command line: is_given("gpus")
  // Simulation.
  double simulated_days = 0;  // 0: none, or with a trace its length
  std::uint64_t seed = 1;
  double weibull_shape = 1;
  std::string trace_path;
  std::uint32_t trace_nodes = 0;  // 0: as many as failed
};

// Declares the subcommand `plan`. Its arguments are stored in `options`, which must outlive `app`.
CLI::App* add_plan_command(CLI::App& app, PlanOptions& options, bool& json);

// `scope`: the agents to ask, with --job. Throws Failure or std::invalid_argument with one sentence.
Result show_plan(const PlanOptions& options, const Scope& scope = {});

}  // namespace ckpt::cli
