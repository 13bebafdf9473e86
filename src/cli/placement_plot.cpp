#include "cli/placement_plot.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <sstream>

#include "base/error.hpp"
#include "base/unique_fd.hpp"
#include "placement/bounds.hpp"
#include "placement/survival.hpp"

namespace ckpt::cli {
namespace {

using placement::Pattern;
using placement::Strategy;

constexpr int gnuplot_timeout_ms = 60'000;

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("''") : std::string(1, c);
  return result + "'";
}

std::string terminal_for(const std::string& path) {
  const auto ends_with = [&](const std::string& end) {
    return path.size() > end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
  };
  if (ends_with(".svg")) return "svg size 1100,440 dynamic background 'white'";
  if (ends_with(".png")) return "pngcairo size 1100,440";
  throw Failure(CKPT_ERR_INVALID, "a plot is written as .png or .svg, and '" + path + "' is neither");
}

// A curve as gnuplot's inline data, and how it is drawn.
struct Curve {
  std::string title;
  std::string style;
  std::vector<std::pair<double, double>> points;
};

std::string panel(const std::string& title, const std::string& x_label, const std::vector<Curve>& curves) {
  std::ostringstream script;
  script << "set title " << quoted(title) << "\nset xlabel " << quoted(x_label) << "\nplot ";
  for (std::size_t i = 0; i < curves.size(); ++i) {
    script << (i == 0 ? "" : ", ") << "'-' with " << curves[i].style << " title " << quoted(curves[i].title);
  }
  script << "\n";
  for (const auto& curve : curves) {
    for (const auto& [x, y] : curve.points) script << x << " " << y << "\n";
    script << "e\n";
  }
  return script.str();
}

// Until hardly anything is survived by any of them; at most some 60 points.
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

// GEMINI's axes: groups and ring, as many lost as there are copies and one more.
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

// The exit status of `gnuplot SCRIPT`; what it says on standard error, people see.
int run_gnuplot(const std::string& script_path) {
  std::string program = "gnuplot";
  std::string argument = script_path;
  std::array<char*, 3> arguments{program.data(), argument.data(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, "gnuplot", nullptr, nullptr, arguments.data(), environ);
  if (error == ENOENT) {
    throw Failure(CKPT_ERR_SYSTEM, "gnuplot draws the plot and is not installed: install the package gnuplot-nox");
  }
  if (error != 0) throw Failure(CKPT_ERR_SYSTEM, std::string("cannot start gnuplot: ") + std::strerror(error));
  const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  pollfd waited{process.get(), POLLIN, 0};
  const bool in_time = poll(&waited, 1, gnuplot_timeout_ms) == 1;
  if (!in_time) kill(pid, SIGKILL);
  int status = 0;
  waitpid(pid, &status, 0);
  if (!in_time) throw Failure(CKPT_ERR_TIMEOUT, "gnuplot did not end within 60 s and was stopped");
  return status;
}

class TemporaryScript {
 public:
  explicit TemporaryScript(const std::string& text) {
    const UniqueFd file(mkstemp(path_.data()));
    if (file.get() < 0) throw_errno(CKPT_ERR_SYSTEM, "cannot create " + path_);
    if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
      unlink(path_.c_str());
      throw_errno(CKPT_ERR_SYSTEM, "cannot write " + path_);
    }
  }
  ~TemporaryScript() { unlink(path_.c_str()); }
  TemporaryScript(const TemporaryScript&) = delete;
  TemporaryScript& operator=(const TemporaryScript&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_ = "/tmp/ckptctl-plot-XXXXXX";
};

}  // namespace

std::string plot_script(const SurvivalPlot& plot, const std::string& path) {
  std::ostringstream script;
  script << "set terminal " << terminal_for(path) << "\nset output " << quoted(path) << "\n"
         << "set ylabel 'recoverable from memory (%)'\nset yrange [0:103]\nset grid\n"
         << "set multiplot layout 1,2\nset key top right opaque\n"
         << panel_against_lost(plot) << "set key bottom right\n"
         << panel_against_nodes(plot) << "unset multiplot\n";
  return script.str();
}

void draw(const SurvivalPlot& plot, const std::string& path) {
  const TemporaryScript script(plot_script(plot, path));
  const int status = run_gnuplot(script.path());
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw Failure(CKPT_ERR_SYSTEM, "gnuplot could not draw " + path + "; it said why above");
  }
}

}  // namespace ckpt::cli
