#include "cli/plan/plan_figures.hpp"

#include <algorithm>
#include <cmath>

#include "cli/plan/plan_numbers.hpp"

namespace ckpt::cli {
namespace {

using planner::Availability;
using planner::Candidate;
using planner::Inputs;
using planner::Plan;
using planner::Source;

constexpr double month_s = 30.44 * 24 * 3600;

bool writes_to_storage(const Candidate& row) { return std::isfinite(row.setting.storage_every_s); }

}  // namespace

Costs costs(const Inputs& in, const Candidate& row) {
  const auto& found = row.appraisal;
  const double wasted_gpus = (1 - found.effective_time) * in.cluster.gpus;
  const std::size_t storage = planner::index(Source::storage);
  const double lost_s = row.behavior.detection_s +
                        row.behavior.restart_s[planner::index(planner::Fault::node)][storage] +
                        row.behavior.every_s[storage] / 2 + row.behavior.lag_s[storage];
  const double losses_per_month = found.storage_losses_per_s * month_s;
  return {wasted_gpus * 24, wasted_gpus * month_s / 3600 * in.gpu_hour_price, -std::expm1(-losses_per_month),
          losses_per_month * lost_s / 3600 * in.cluster.gpus * in.gpu_hour_price};
}

std::vector<std::pair<std::string, std::string>> options_to_set(const Candidate& row) {
  if (row.setting.scheme.availability != Availability::option || !row.fits()) return {};
  std::vector<std::pair<std::string, std::string>> options = {
      {"protection", placement::name(row.setting.scheme.protection)},
      {"own_slots", std::to_string(row.setting.own_slots)}};
  if (writes_to_storage(row))
    options.emplace_back("storage_interval_s", std::to_string(static_cast<long>(row.setting.storage_every_s)));
  return options;
}

std::vector<std::string> things_to_do(const Inputs& in, const Candidate& row) {
  std::vector<std::string> things;
  const double iterations = row.behavior.capture_every_s / in.job.iteration_s;
  things.push_back(iterations < 1.5 ? "Call snapshot() after every iteration."
                                    : "Call snapshot() every " + rounded(std::round(iterations), 0) + " iterations.");
  if (writes_to_storage(row)) things.emplace_back("Set storage to a directory that all nodes see, or to nfs://...");
  if (in.failures.domain_nodes > 0) {
    things.emplace_back(in.failures.domains_named
                            ? "Set domain on each node: this plan counts on it."
                            : "Set domain on each node: without it, a domain may take both copies.");
  }
  if (in.cluster.standby_nodes > 0) {
    const std::uint32_t needed = planner::standby_nodes_needed(in);
    things.push_back(
        "Start " + std::to_string(std::max(needed, in.cluster.standby_nodes)) + " agents with standby=true." +
        (needed > in.cluster.standby_nodes ? " " + std::to_string(in.cluster.standby_nodes) +
                                                 " would run out, and this plan counts on one for each lost node."
                                           : ""));
  }
  return things;
}

std::string why(const Plan& plan, const Candidate& row) {
  const Candidate* next = nullptr;
  for (const Candidate& other : plan.rows) {
    const bool counts = other.fits() && other.setting.scheme.availability == Availability::option &&
                        other.setting.scheme.name != row.setting.scheme.name;
    if (counts && (next == nullptr || other.appraisal.effective_time > next->appraisal.effective_time)) next = &other;
  }
  if (next == nullptr) return "No other protection can be set on this cluster.";
  const double ahead = row.appraisal.effective_time - next->appraisal.effective_time;
  if (ahead > 2e-4)
    return "It trains " + percent(ahead) + " more of the time than the next, " + next->setting.scheme.name + ".";
  return "Any other protection that can be set trains at most 0.02 % more of the time.";
}

std::string obstacle(const Candidate& row) {
  if (!row.fits()) return row.why_not;
  if (row.setting.scheme.availability == Availability::partly) return "this version does less than this plan assumes";
  if (row.setting.scheme.availability == Availability::some_jobs)
    return "only for some optimizers (docs/mechanisms.md)";
  return row.setting.scheme.availability == Availability::comparison ? "for comparison" : "";
}

}  // namespace ckpt::cli
