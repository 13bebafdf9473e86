#include "cli/plan/plan_command.hpp"

#include <CLI/CLI.hpp>

#include "cli/gnuplot.hpp"
#include "cli/plan/byte_count.hpp"
#include "cli/plan/plan_job.hpp"
#include "cli/plan/plan_numbers.hpp"
#include "cli/plan/plan_paper.hpp"
#include "cli/plan/plan_plot.hpp"
#include "cli/plan/plan_simulation.hpp"
#include "cli/plan/plan_text.hpp"
#include "placement/odds/planner/planner.hpp"

namespace ckpt::cli {
namespace {

using planner::Inputs;

void set_bytes(double& to, const char* name, const std::string& text) {
  if (!text.empty()) to = byte_count(name, text);
}

void set_rates(Inputs& in, const PlanOptions& options, const std::optional<PlanTrace>& trace) {
  const auto& rate = planner::published_rate(options.rates);
  in.failures.gpu_mtbf_s =
      trace ? planner::trace_gpu_mtbf_s(trace->trace, trace->nodes, in.cluster.gpus_per_node) : rate.gpu_mtbf_s;
  if (options.gpu_mtbf_hours) in.failures.gpu_mtbf_s = *options.gpu_mtbf_hours * 3600;
  in.failures.node_share = options.node_share.value_or(trace ? 1 : rate.node_share);
}

Inputs inputs_of(const PlanOptions& options, const std::optional<PlanTrace>& trace) {
  Inputs in = options.inputs;
  set_rates(in, options, trace);
  in.failures.domains_named = !options.domains_unnamed;
  in.cluster.repair_s = options.repair_hours * 3600;
  set_bytes(in.job.state_bytes, "state", options.state);
  set_bytes(in.cluster.memory_bytes_per_node, "memory", options.memory);
  set_bytes(in.cluster.pcie_bytes_per_s, "pcie", options.pcie);
  set_bytes(in.cluster.network_bytes_per_s, "network", options.network);
  set_bytes(in.cluster.storage_bytes_per_s, "storage-rate", options.storage_rate);
  return in;
}

std::string rates_source(const PlanOptions& options, const std::optional<PlanTrace>& trace) {
  if (trace && !options.gpu_mtbf_hours)
    return "the trace: " + std::to_string(trace->trace.faults.size()) + " faults of " + std::to_string(trace->nodes) +
           " nodes in " + rounded(trace->trace.span_days, 0) + " days";
  return options.gpu_mtbf_hours ? "as given" : std::string(planner::published_rate(options.rates).source);
}

std::vector<planner::Scheme> schemes_of(const PlanOptions& options) {
  if (options.protection.empty()) return planner::all_schemes();
  try {
    return {planner::scheme_of(placement::protection_named(options.protection))};
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument("protection " + std::string(error.what()) + ", not '" + options.protection + "'");
  }
}

// A protection that was asked for has to be possible.
void check_asked(const PlanOptions& options, const planner::Plan& plan) {
  if (!options.protection.empty() && !plan.recommended) throw std::invalid_argument(plan.rows.front().why_not);
}

Inputs with_failures(Inputs inputs, double factor) {
  inputs.failures.gpu_mtbf_s /= factor;
  return inputs;
}

void add_cluster_options(CLI::App& command, PlanOptions& options) {
  auto& cluster = options.inputs.cluster;
  command.add_option("--gpus", cluster.gpus, "GPUs of the job")->capture_default_str();
  command.add_option("--gpus-per-node", cluster.gpus_per_node, "GPUs of a node")->capture_default_str();
  command.add_option("--memory", options.memory, "Memory of a node that checkpoints may take (default: 512GiB)");
  command.add_option("--pcie", options.pcie, "Bytes per second from one GPU to its host (default: 25GB)");
  command.add_option("--network", options.network, "Bytes per second of one node's network (default: 50GB)");
  command.add_option("--storage-rate", options.storage_rate,
                     "Bytes per second of storage, for all nodes together (default: 20GB)");
  command
      .add_option("--standby", cluster.standby_nodes,
                  "Standby nodes. 0: each lost node is replaced by a new one that must be ordered")
      ->capture_default_str();
  command.add_option("--replace", cluster.replace_s, "Seconds from ordering a node until it runs")
      ->capture_default_str();
  command.add_option("--repair", options.repair_hours, "Hours from the loss of a node until it can be a standby node")
      ->capture_default_str();
  command.add_option("--price", options.inputs.gpu_hour_price, "Price of a GPU-hour")->capture_default_str();
}

void add_failure_options(CLI::App& command, PlanOptions& options) {
  auto& failures = options.inputs.failures;
  command.add_option("--rates", options.rates, "Published failure rate: llama3, bytedance or opt175b")
      ->capture_default_str();
  command.add_option("--mtbf", options.gpu_mtbf_hours,
                     "Mean hours until one GPU has a failure that stops the job; replaces --rates");
  command.add_option("--node-share", options.node_share, "Share of failures that lose a node's memory (default: 0.78)");
  command.add_option("--domain-nodes", failures.domain_nodes, "Nodes of a failure domain, such as a rack")
      ->capture_default_str();
  command
      .add_option("--domain-share", failures.domain_share, "Share of lost nodes that are lost with their whole domain")
      ->capture_default_str();
  command.add_flag("--domains-unnamed", options.domains_unnamed, "Plan for a job that does not set the option domain");
  command.add_flag("--domains-unplanned", options.domains_unplanned,
                   "Plan as if nodes failed one by one; only the simulation lets whole domains fail");
}

void add_job_options(CLI::App& command, PlanOptions& options) {
  auto& job = options.inputs.job;
  command.add_option("--state", options.state, "Bytes of the state, one replica over all its ranks (default: 6.5TB)");
  command.add_option("--replicas", job.replicas, "Nodes that hold each shard on their GPUs")->capture_default_str();
  command.add_option("--iteration", job.iteration_s, "Seconds of an iteration")->capture_default_str();
  command.add_option("--idle", job.idle_share, "Share of an iteration in which the network is idle")
      ->capture_default_str();
  command.add_option("--detection", job.detection_s, "Seconds until a failure is noticed")->capture_default_str();
  command
      .add_option("--restart", job.restart_s,
                  "Seconds until all processes train again, not counting the loading of state")
      ->capture_default_str();
  command.add_option("--live-restart", job.live_restart_s, "Like --restart, if the healthy processes keep running")
      ->capture_default_str();
  auto& overheads = options.inputs.overheads;
  command.add_option("--blocking", overheads.blocking_s, "Seconds for which a snapshot blocks training")
      ->capture_default_str();
  command
      .add_option("--copy-share", overheads.copy_share,
                  "Share of an iteration in which the copy to the host may run beside training")
      ->capture_default_str();
  command
      .add_option("--traffic-share", overheads.traffic_share,
                  "By what share iterations are longer while copies are sent")
      ->capture_default_str();
  command
      .add_option("--storing-share", overheads.storing_share,
                  "By what share iterations are longer while a checkpoint is written to storage")
      ->capture_default_str();
}

void add_simulation_options(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--simulate", options.simulated_days,
                  "Also simulate the job for this many days (default with --trace: as long as the trace)")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Seed of the simulation")->capture_default_str();
  command
      .add_option("--weibull", options.weibull_shape,
                  "Simulate nodes whose time between failures has a Weibull distribution of this shape")
      ->capture_default_str();
  command.add_option(
      "--trace", options.trace_path,
      "File with a record of real faults, a fault trace; its format is in docs/protection.md. The failure "
      "rate comes from it, and a simulation of the job replays its faults");
  command.add_option("--trace-nodes", options.trace_nodes,
                     "Nodes of the cluster in which the trace was recorded (default: those that failed)");
}

void add_job(const JobReport& report, const JobFindings& findings, const planner::Plan& plan, Result& result) {
  const JobComparison comparison = compare_job(findings, plan);
  result.text = job_text(report, findings, comparison, plan) + result.text;
  result.json["job"] = job_json(report, findings, comparison);
}

}  // namespace

CLI::App* add_plan_command(CLI::App& app, PlanOptions& options, bool& json) {
  CLI::App* command = app.add_subcommand("plan", "Say what failures will cost a job, and which protection to take");
  command->add_flag("--json", json, "Print JSON");
  command->add_option("--protection", options.protection, "Plan only this protection, e.g. copies(2)+xor(8)");
  command->add_flag("--paper", options.papers, "Show numbers of three papers beside what their formulas and ours give");
  command->add_option("--plot", options.plot_path, "Also draw the plan: a .png or .svg file (needs gnuplot)");
  command->add_option("--job", options.job, "Take what the agents of this running job measured (default: the only job)")
      ->expected(0, 1);
  options.is_given = [command](const char* name) { return command->count(std::string("--") + name) > 0; };
  add_cluster_options(*command, options);
  add_failure_options(*command, options);
  add_job_options(*command, options);
  add_simulation_options(*command, options);
  return command;
}

Result show_plan(const PlanOptions& options, const Scope& scope) {
  if (options.papers) return show_papers();
  if (!options.plot_path.empty()) gnuplot_output(options.plot_path, 0, 0);  // throws if it is neither .png nor .svg
  const std::optional<PlanTrace> trace = read_trace(options);
  Inputs inputs = inputs_of(options, trace);
  std::optional<JobReport> report;
  std::optional<JobFindings> findings;
  if (options.is_given("job")) {
    report = ask_job(scope);
    findings = job_findings(*report, inputs, options.is_given);
    inputs = findings->inputs;
  }
  const Inputs simulated = inputs;
  if (options.domains_unplanned) inputs.failures.domain_share = 0;
  const planner::Planner planner(inputs, schemes_of(options));
  PlanView view{inputs,
                rates_source(options, trace),
                planner.plan(),
                planner.plan(with_failures(inputs, 3)),
                planner.plan(with_failures(inputs, 1.0 / 3)),
                planner.levers(),
                {}};
  check_asked(options, view.plan);
  view.simulated = simulate_rows(options, trace, simulated, planner, view.plan);
  Result result{plan_text(view), plan_json(view)};
  if (findings) add_job(*report, *findings, view.plan, result);
  if (!options.plot_path.empty()) {
    draw_plan(inputs, view.plan, options.plot_path);
    result.text += "\nplot: " + options.plot_path + "\n";
    result.json["plot"] = options.plot_path;
  }
  return result;
}

}  // namespace ckpt::cli
