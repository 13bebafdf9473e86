#include "cli/plan/plan_text.hpp"

#include <cmath>

#include "cli/plan/byte_count.hpp"
#include "cli/plan/plan_figures.hpp"
#include "cli/plan/plan_numbers.hpp"
#include "cli/table.hpp"

namespace ckpt::cli {
namespace {

using planner::Inputs;
using planner::Plan;

std::string inputs_text(const PlanView& view) {
  const Inputs& in = view.inputs;
  const double failures_per_s = in.cluster.gpus / in.failures.gpu_mtbf_s;
  return grouped(in.cluster.gpus) + " GPUs on " + grouped(in.cluster.nodes()) + " nodes. A failure every " +
         duration(1 / failures_per_s) + ", " + rounded(100 * in.failures.node_share, 0) + " % of them lose a node (" +
         view.rates_source + ").\nState: " + decimal_bytes(in.job.state_bytes) + ", " +
         (in.job.replicas == 1 ? "no replicas" : grouped(in.job.replicas) + " replicas") + ", " +
         decimal_bytes(planner::node_state_bytes(in)) + " on a node. Iteration: " + duration(in.job.iteration_s) +
         ". Detection: " + duration(in.job.detection_s) + ". Restart: " + duration(in.job.restart_s) + ".\n";
}

std::string frequency_text(const Inputs& in, const planner::Candidate& row) {
  const double iterations = row.behavior.capture_every_s / in.job.iteration_s;
  return iterations < 1.5 ? "iteration" : rounded(std::round(iterations), 0) + " iterations";
}

std::string simulated_text(const PlanView& view, std::size_t row) {
  if (view.simulated.empty() || !view.simulated[row]) return "";
  const planner::Simulated& found = *view.simulated[row];
  return percent(found.effective_time) + (found.waited_s > 0 ? ", waited " + duration(found.waited_s) : "");
}

Row shown_row(const Inputs& in, const planner::Candidate& row, bool is_recommended) {
  const std::string name = (is_recommended ? "* " : "  ") + row.setting.scheme.name;
  if (!row.has_figures()) return {name, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", "-"};
  const Costs cost = costs(in, row);
  const auto& split = row.appraisal.split;
  return {name,
          frequency_text(in, row),
          duration(row.behavior.every_s[planner::index(planner::Source::storage)]),
          percent(row.appraisal.effective_time),
          percent(1 - row.appraisal.effective_time),
          percent(split.steady),
          percent(split.detection),
          percent(split.restart),
          percent(split.redone),
          grouped(cost.wasted_gpu_hours_per_day),
          grouped(cost.wasted_per_month),
          decimal_bytes(row.behavior.memory_bytes_per_node),
          row.behavior.every_s[planner::index(planner::Source::memory)] > 0 ? percent(cost.memory_lost_odds_per_month)
                                                                            : "-"};
}

std::string rows_table(const PlanView& view) {
  std::vector<Row> rows = {{"  strategy", "snapshot every", "storage every", "effective", "wasted", "steady",
                            "detection", "restart", "redone", "GPU-h/day", "cost/month", "memory/node",
                            "memory lost/month"}};
  if (!view.simulated.empty()) rows.front().emplace_back("simulated");
  for (std::size_t i = 0; i < view.plan.rows.size(); ++i) {
    rows.push_back(shown_row(view.inputs, view.plan.rows[i], view.plan.recommended == i));
    if (!view.simulated.empty()) rows.back().push_back(simulated_text(view, i));
    rows.back().push_back(obstacle(view.plan.rows[i]));
  }
  return table(rows);
}

std::string recommendation_text(const PlanView& view) {
  const Plan& plan = view.plan;
  if (!plan.recommended) return "No protection that this version can set fits this cluster.\n";
  const planner::Candidate& row = plan.rows[*plan.recommended];
  std::string text = "Recommended: " + row.setting.scheme.name + ", " + percent(row.appraisal.effective_time) +
                     " effective training time. " + why(plan, row) + "\n ";
  for (const auto& [key, value] : options_to_set(row)) text += " " + key + "=" + value;
  text += "\n";
  for (const std::string& thing : things_to_do(view.inputs, row)) text += "  " + thing + "\n";
  const Costs cost = costs(view.inputs, row);
  return text +
         "  The odds that checkpoints in memory are lost in a month: " + percent(cost.memory_lost_odds_per_month) +
         ". Such losses cost " + grouped(cost.memory_lost_per_month) + " of the " + grouped(cost.wasted_per_month) +
         " that failures cost in a month.\n";
}

std::string best_of(const Plan& plan) {
  if (!plan.recommended) return "nothing fits";
  const planner::Candidate& row = plan.rows[*plan.recommended];
  return row.setting.scheme.name + ", " + percent(row.appraisal.effective_time);
}

std::string levers_text(const PlanView& view) {
  if (!view.plan.recommended) return "";
  const double now = view.plan.rows[*view.plan.recommended].appraisal.effective_time;
  std::string text = "What would raise the effective training time:\n";
  std::vector<Row> rows;
  for (const planner::Lever& lever : view.levers)
    if (lever.effective_time - now > 5e-5) rows.push_back({"+" + percent(lever.effective_time - now), lever.change});
  return rows.empty() ? "" : text + table(rows, "  ");
}

}  // namespace

std::string plan_text(const PlanView& view) {
  return inputs_text(view) + "\n" + rows_table(view) + "\n" + recommendation_text(view) +
         "\nThree times as many failures: " + best_of(view.more_failures) +
         ". A third of them: " + best_of(view.fewer_failures) + ".\n" + levers_text(view);
}

}  // namespace ckpt::cli
