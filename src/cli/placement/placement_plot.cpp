#include "cli/placement/placement_plot.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "cli/gnuplot.hpp"
#include "placement/odds/bounds.hpp"
#include "placement/odds/survival.hpp"

namespace ckpt::cli {
namespace {

using placement::Pattern;
using placement::Strategy;

// A curve as gnuplot's inline data, with its style.
struct Curve {
  std::string title;
  std::string style;
  std::vector<std::pair<double, double>> points;
};

std::string panel(const std::string& title, const std::string& x_label, const std::vector<Curve>& curves) {
  std::ostringstream script;
  script << "set title " << gnuplot_quoted(title) << "\nset xlabel " << gnuplot_quoted(x_label) << "\nplot ";
  for (std::size_t i = 0; i < curves.size(); ++i) {
    script << (i == 0 ? "" : ", ") << "'-' with " << curves[i].style << " title " << gnuplot_quoted(curves[i].title);
  }
  script << "\n";
  for (const auto& curve : curves) {
    for (const auto& [x, y] : curve.points) script << x << " " << y << "\n";
    script << "e\n";
  }
  return script.str();
}

// Up to the number of losses that hardly any of them survives; at most some 60 points.
std::string panel_against_lost(const SurvivalPlot& plot) {
  std::vector<Pattern> patterns;
  for (const auto strategy : plot.strategies) patterns.emplace_back(strategy, plot.nodes, plot.copies);
  std::uint32_t last = plot.copies;
  const auto any_survives = [&](std::uint32_t lost) {
    return std::any_of(patterns.begin(), patterns.end(), [&](const Pattern& pattern) {
      return placement::survival_odds(pattern, lost).survival > 0.005;
    });
  };
  while (last < plot.nodes && any_survives(last)) last = std::min(plot.nodes, last + 1 + last / 8);
  const std::uint32_t step = 1 + last / 60;
  std::vector<Curve> curves;
  for (const auto& pattern : patterns) {
    Curve exact{std::string(name(pattern.strategy())), "linespoints pointsize 0.6", {}};
    Curve bound{exact.title + ", the paper's bound", "lines dashtype 2", {}};
    for (std::uint32_t lost = 0; lost <= last; lost += step) {
      exact.points.emplace_back(lost, 100 * placement::survival_odds(pattern, lost).survival);
      const double at_least = placement::paper_bound(pattern, lost);
      if (!std::isnan(at_least)) bound.points.emplace_back(lost, 100 * at_least);
    }
    const auto same =
        std::find_if(curves.begin(), curves.end(), [&](const Curve& curve) { return curve.points == exact.points; });
    if (same != curves.end()) {
      same->title += " = " + exact.title;
    } else {
      curves.push_back(std::move(exact));
    }
    const bool has_bound = pattern.strategy() == Strategy::group || pattern.strategy() == Strategy::ring;
    if (has_bound && bound.points.size() > plot.copies + 1) curves.push_back(std::move(bound));
  }
  return panel(std::to_string(plot.nodes) + " nodes, " + std::to_string(plot.copies) + " copies", "lost nodes", curves);
}

// GEMINI's axes: groups and ring, with as many lost nodes as copies, and one more.
std::string panel_against_nodes(const SurvivalPlot& plot) {
  std::vector<Curve> curves;
  const std::uint32_t most_nodes = std::max(128u, 8 * plot.copies);
  for (const auto strategy : {Strategy::group, Strategy::ring}) {
    for (const std::uint32_t lost : {plot.copies, plot.copies + 1}) {
      Curve curve{std::string(name(strategy)) + ", " + std::to_string(lost) + " lost",
                  strategy == Strategy::ring ? "lines dashtype 2" : "lines",
                  {}};
      for (std::uint32_t nodes = 2 * plot.copies; nodes <= most_nodes; nodes += plot.copies) {
        const Pattern pattern(strategy, nodes, plot.copies);
        curve.points.emplace_back(nodes, 100 * placement::survival_odds(pattern, lost).survival);
      }
      curves.push_back(std::move(curve));
    }
  }
  return panel(std::to_string(plot.copies) + " copies", "nodes", curves);
}

}  // namespace

std::string plot_script(const SurvivalPlot& plot, const std::string& path) {
  std::ostringstream script;
  script << gnuplot_output(path, 1100, 440)
         << "set ylabel 'recoverable from memory (%)'\nset yrange [0:103]\nset grid\n"
         << "set multiplot layout 1,2\nset key top right opaque\n"
         << panel_against_lost(plot) << "set key bottom right\n"
         << panel_against_nodes(plot) << "unset multiplot\n";
  return script.str();
}

void draw(const SurvivalPlot& plot, const std::string& path) { run_gnuplot(plot_script(plot, path), path); }

}  // namespace ckpt::cli
