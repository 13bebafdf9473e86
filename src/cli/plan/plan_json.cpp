#include <cmath>

#include "cli/plan/plan_figures.hpp"
#include "cli/plan/plan_text.hpp"

namespace ckpt::cli {
namespace {

using nlohmann::json;
using planner::Candidate;
using planner::Inputs;
using planner::Plan;

json finite(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json options_json_of(const Candidate& row) {
  json options = json::object();
  for (const auto& [key, value] : options_to_set(row)) options[key] = value;
  return options;
}

json row_json(const Inputs& in, const Candidate& row) {
  json found = {{"name", row.setting.scheme.name},
                {"what", row.setting.scheme.what},
                {"available", row.setting.scheme.availability == planner::Availability::option && row.fits()},
                {"obstacle", obstacle(row)},
                {"options", options_json_of(row)}};
  if (!row.has_figures()) {
    found.update({{"effective_time", nullptr}, {"wasted", nullptr}});
    return found;
  }
  const auto& split = row.appraisal.split;
  const Costs cost = costs(in, row);
  found.update({{"effective_time", row.appraisal.effective_time},
                {"wasted",
                 {{"all", 1 - row.appraisal.effective_time},
                  {"steady", split.steady},
                  {"detection", split.detection},
                  {"restart", split.restart},
                  {"redone", split.redone},
                  {"first_order", row.appraisal.first_order_wasted}}},
                {"snapshot_every_iterations", std::round(row.behavior.capture_every_s / in.job.iteration_s)},
                {"storage_every_s", finite(row.setting.storage_every_s)},
                {"memory_bytes_per_node", row.behavior.memory_bytes_per_node},
                {"sent_bytes_per_node", row.behavior.sent_bytes_per_node},
                {"wasted_gpu_hours_per_day", cost.wasted_gpu_hours_per_day},
                {"cost_per_month", cost.wasted_per_month},
                {"memory_lost_odds_per_month", cost.memory_lost_odds_per_month},
                {"memory_lost_cost_per_month", cost.memory_lost_per_month}});
  return found;
}

json simulated_json(const planner::Simulated& found) {
  const auto& split = found.split;
  return {{"effective_time", found.effective_time},
          {"wasted",
           {{"all", 1 - found.effective_time},
            {"steady", split.steady},
            {"detection", split.detection},
            {"restart", split.restart},
            {"redone", split.redone}}},
          {"days", found.elapsed_s / 86'400},
          {"failures", found.failures},
          {"storage_losses", found.storage_losses},
          {"waited_for_standby_s", found.waited_s}};
}

json best_json(const Inputs& in, const Plan& plan) {
  if (!plan.recommended) return nullptr;
  const Candidate& row = plan.rows[*plan.recommended];
  json found = row_json(in, row);
  found["why"] = why(plan, row);
  found["to_do"] = things_to_do(in, row);
  return found;
}

json inputs_json(const PlanView& view) {
  const Inputs& in = view.inputs;
  return {{"gpus", in.cluster.gpus},
          {"gpus_per_node", in.cluster.gpus_per_node},
          {"nodes", in.cluster.nodes()},
          {"memory_bytes_per_node", in.cluster.memory_bytes_per_node},
          {"pcie_bytes_per_s", in.cluster.pcie_bytes_per_s},
          {"network_bytes_per_s", in.cluster.network_bytes_per_s},
          {"storage_bytes_per_s", in.cluster.storage_bytes_per_s},
          {"standby_nodes", in.cluster.standby_nodes},
          {"replace_s", in.cluster.replace_s},
          {"repair_s", in.cluster.repair_s},
          {"gpu_mtbf_s", in.failures.gpu_mtbf_s},
          {"rates_source", view.rates_source},
          {"node_share", in.failures.node_share},
          {"domain_nodes", in.failures.domain_nodes},
          {"domain_share", in.failures.domain_share},
          {"domains_named", in.failures.domains_named},
          {"state_bytes", in.job.state_bytes},
          {"replicas", in.job.replicas},
          {"iteration_s", in.job.iteration_s},
          {"idle_share", in.job.idle_share},
          {"detection_s", in.job.detection_s},
          {"restart_s", in.job.restart_s},
          {"live_restart_s", in.job.live_restart_s},
          {"gpu_hour_price", in.gpu_hour_price}};
}

}  // namespace

json plan_json(const PlanView& view) {
  json found = {{"inputs", inputs_json(view)}, {"strategies", json::array()}};
  for (std::size_t i = 0; i < view.plan.rows.size(); ++i) {
    found["strategies"].push_back(row_json(view.inputs, view.plan.rows[i]));
    if (!view.simulated.empty() && view.simulated[i])
      found["strategies"].back()["simulated"] = simulated_json(*view.simulated[i]);
  }
  found["recommended"] = best_json(view.inputs, view.plan);
  found["sensitivity"] = {{"failures_x3", best_json(view.inputs, view.more_failures)},
                          {"failures_div3", best_json(view.inputs, view.fewer_failures)}};
  found["levers"] = json::array();
  for (const planner::Lever& lever : view.levers)
    found["levers"].push_back({{"change", lever.change}, {"effective_time", lever.effective_time}});
  return found;
}

}  // namespace ckpt::cli
