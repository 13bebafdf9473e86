#include "cli/plan/plan_plot.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

#include "cli/gnuplot.hpp"

namespace ckpt::cli {
namespace {

using planner::Candidate;
using planner::Fault;
using planner::Inputs;
using planner::Plan;
using planner::Planner;
using planner::Source;

struct PlanCurve {
  std::string title;
  std::vector<std::pair<double, double>> points;
};

std::string curves_panel(const std::string& title, const std::string& x_label, const std::string& y_label,
                         const std::vector<PlanCurve>& curves) {
  std::ostringstream script;
  script << "set title " << gnuplot_quoted(title) << "\nset xlabel " << gnuplot_quoted(x_label) << "\nset ylabel "
         << gnuplot_quoted(y_label) << "\nplot ";
  for (std::size_t i = 0; i < curves.size(); ++i)
    script << (i == 0 ? "" : ", ") << "'-' with linespoints pointsize 0.5 title " << gnuplot_quoted(curves[i].title);
  script << "\n";
  for (const PlanCurve& curve : curves) {
    for (const auto& [x, y] : curve.points) script << x << " " << y << "\n";
    script << "e\n";
  }
  return script.str();
}

// Three that show the range, and the recommended one.
std::vector<planner::Scheme> drawn_schemes(const Inputs& in, const Plan& plan) {
  std::vector<planner::Scheme> drawn;
  for (const Candidate& row : plan.rows) {
    const std::string& name = row.setting.scheme.name;
    const bool is_recommended = plan.recommended && &plan.rows[*plan.recommended] == &row;
    const bool is_shown = name == "storage" || name == "own memory" || name == "every iteration" || name == "jit" ||
                          plan.rows.size() <= 3;
    if ((is_shown || is_recommended) && why_not(in, row.setting.scheme).empty()) drawn.push_back(row.setting.scheme);
  }
  return drawn;
}

// The mean over the odds that memory survives the loss of so many nodes.
double wasted_s(const Candidate& row, const planner::Holdings& holdings, std::uint32_t lost) {
  const auto cost_s = [&](Source source) {
    const std::size_t fault = index(lost == 0 ? Fault::process : Fault::node);
    return row.behavior.detection_s + row.behavior.restart_s[fault][index(source)] + row.behavior.lag_s[index(source)] +
           row.behavior.every_s[index(source)] / 2;
  };
  const Source newest = newest_source(row.behavior);
  if (newest == Source::storage) return cost_s(newest);
  const double odds = holdings.loss_odds(newest, lost);
  return (1 - odds) * cost_s(newest) + odds * cost_s(Source::storage);
}

std::vector<PlanCurve> against_lost(const Inputs& in, const std::vector<planner::Scheme>& schemes) {
  const Planner planner(in, schemes);
  std::vector<PlanCurve> curves;
  for (const Candidate& row : planner.plan().rows) {
    curves.push_back({row.setting.scheme.name, {}});
    for (std::uint32_t lost = 0; lost <= std::min(4u, in.cluster.nodes() - 1); ++lost)
      curves.back().points.emplace_back(lost, wasted_s(row, planner.holdings(row.setting.scheme), lost));
  }
  return curves;
}

void add_points(std::vector<PlanCurve>& curves, const Plan& plan, double x) {
  for (const Candidate& row : plan.rows) {
    const auto same = [&](const PlanCurve& curve) { return curve.title == row.setting.scheme.name; };
    auto curve = std::find_if(curves.begin(), curves.end(), same);
    if (curve == curves.end()) curve = curves.insert(curve, {row.setting.scheme.name, {}});
    if (row.has_figures()) curve->points.emplace_back(x, 100 * row.appraisal.effective_time);
  }
}

std::vector<PlanCurve> against_failures(const Inputs& in, const std::vector<planner::Scheme>& schemes) {
  const Planner planner(in, schemes);
  std::vector<PlanCurve> curves;
  for (const double factor : {0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0}) {
    Inputs changed = in;
    changed.failures.gpu_mtbf_s /= factor;
    add_points(curves, planner.plan(changed), 86'400 * in.cluster.gpus / changed.failures.gpu_mtbf_s);
  }
  return curves;
}

std::vector<PlanCurve> against_gpus(const Inputs& in, const std::vector<planner::Scheme>& schemes) {
  std::vector<PlanCurve> curves;
  for (const double factor : {0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0}) {
    Inputs changed = in;
    const double gpus = factor * in.cluster.gpus;
    if (gpus < in.cluster.gpus_per_node || gpus > 1e6) continue;
    changed.cluster.gpus = static_cast<std::uint32_t>(gpus);
    if (changed.job.replicas > changed.cluster.nodes()) continue;
    add_points(curves, Planner(changed, schemes).plan(), gpus);
  }
  return curves;
}

}  // namespace

std::string plan_plot_script(const Inputs& in, const Plan& plan, const std::string& path) {
  const auto schemes = drawn_schemes(in, plan);
  std::ostringstream script;
  script << gnuplot_output(path, 1500, 440) << "set grid\nset multiplot layout 1,3\nset key bottom right opaque\n"
         << "set logscale y\nset xtics 1\n"
         << curves_panel("what a failure wastes", "nodes lost at once", "seconds", against_lost(in, schemes))
         << "unset logscale y\nset xtics autofreq\nset yrange [0:103]\nset key bottom left opaque\nset logscale x\n"
         << curves_panel("effective time", "failures per day", "%", against_failures(in, schemes))
         << curves_panel("effective time, as many failures per GPU", "GPUs", "%", against_gpus(in, schemes))
         << "unset multiplot\n";
  return script.str();
}

void draw_plan(const Inputs& in, const Plan& plan, const std::string& path) {
  run_gnuplot(plan_plot_script(in, plan, path), path);
}

}  // namespace ckpt::cli
