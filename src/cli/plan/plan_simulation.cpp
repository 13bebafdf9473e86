#include "cli/plan/plan_simulation.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "cli/files.hpp"

namespace ckpt::cli {
namespace {

constexpr double seconds_per_day = 86'400;
constexpr double most_failures = 2e6;  // about a second of simulation for each row

double elapsed_s(const PlanOptions& options, const std::optional<PlanTrace>& trace, const planner::Inputs& in) {
  const double days = options.simulated_days == 0 && trace ? trace->trace.span_days : options.simulated_days;
  if (!(days >= 0 && days <= 1e6))
    throw std::invalid_argument("--simulate must be from 0 to 1000000 days, not " + std::to_string(days));
  const double failures = days * seconds_per_day * in.cluster.gpus / in.failures.gpu_mtbf_s;
  if (failures > most_failures)
    throw std::invalid_argument("the simulation would take " + std::to_string(static_cast<long long>(failures)) +
                                " failures, too many to wait for; simulate fewer days");
  return days * seconds_per_day;
}

std::unique_ptr<planner::FailureSource> failures_for(const PlanOptions& options, const std::optional<PlanTrace>& trace,
                                                     const planner::Inputs& in) {
  if (trace)
    return planner::trace_failures(trace->trace, {trace->nodes, in.cluster.nodes(), in.cluster.repair_s}, options.seed);
  return options.weibull_shape == 1 ? planner::exponential_failures(in, options.seed)
                                    : planner::weibull_failures(in, options.weibull_shape, options.seed);
}

}  // namespace

std::optional<PlanTrace> read_trace(const PlanOptions& options) {
  if (options.trace_path.empty()) return std::nullopt;
  PlanTrace found{placement::parse_trace(read_file(options.trace_path)), options.trace_nodes};
  if (found.nodes == 0) found.nodes = found.trace.nodes;
  return found;
}

std::vector<std::optional<planner::Simulated>> simulate_rows(const PlanOptions& options,
                                                             const std::optional<PlanTrace>& trace,
                                                             const planner::Inputs& in, const planner::Planner& planner,
                                                             const planner::Plan& plan) {
  const double simulated_s = elapsed_s(options, trace, in);
  if (simulated_s == 0) return {};
  std::vector<std::optional<planner::Simulated>> found;
  for (const planner::Candidate& row : plan.rows) {
    found.emplace_back();
    if (!row.has_figures()) continue;
    const auto failures = failures_for(options, trace, in);
    found.back() = simulate(in, planner.holdings(row.setting.scheme), row.behavior, *failures, simulated_s);
  }
  return found;
}

}  // namespace ckpt::cli
