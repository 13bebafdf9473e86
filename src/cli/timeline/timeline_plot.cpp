#include "cli/timeline/timeline_plot.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "cli/gnuplot.hpp"

namespace ckpt::cli {
namespace {

constexpr double lane_margin = 0.14;  // above and below a lane, which has height 1
constexpr double header_height = 0.75;
constexpr int width_px = 1400;
constexpr int lane_px = 30;
constexpr int height_px_max = 20'000;
constexpr std::size_t commit_labels_max = 24;

struct Look {
  Lane lane;
  const char* title;
  const char* style;
};
// In the order of drawing, one over the other.
constexpr std::array looks = {
    Look{Lane::idle, "no training communication", "boxxyerror lc rgb '#e4f0df' fs solid 1.0 noborder"},
    Look{Lane::communication, "training communication", "boxxyerror lc rgb '#3f72af' lw 0.5 fs solid 1.0 border"},
    Look{Lane::bubble, "bubble (device idle)", "boxxyerror lc rgb '#d9b44a' lw 0.5 fs solid 1.0 border"},
    Look{Lane::capture, "capture of state", "boxxyerror lc rgb '#8e6bbf' lw 0.5 fs solid 1.0 border"},
    Look{Lane::copy, "state is copied", "boxxyerror lc rgb '#4f9d69' lw 0.5 fs solid 1.0 border"},
    Look{Lane::chunk, "checkpoint chunks", "boxxyerror lc rgb '#e8833a' lw 0.5 fs solid 1.0 border"},
    Look{Lane::iteration, "iteration ends", "vectors nohead dt 2 lc rgb '#777777' lw 1.2"},
    Look{Lane::commit, "commit", "vectors nohead lc rgb '#c0273b' lw 2.5"},
};

bool has_lane(const Track& track) { return track.lane != Lane::idle && track.lane != Lane::iteration; }

std::string number(double value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.4f", value);
  return text.data();
}

std::vector<Extent> communications(const NodeTimeline& node) {
  std::vector<Extent> extents;
  for (const Track& track : node.tracks)
    if (track.lane == Lane::communication)
      for (const Mark& mark : track.marks) extents.push_back(mark.extent);
  return extents;
}

// Fills the data lines of each kind of mark, node by node from the top; y grows downwards.
class Drawing {
 public:
  explicit Drawing(const Timeline& timeline) {
    origin_us_ = timeline.nodes.front().shown.begin_us;
    for (const NodeTimeline& node : timeline.nodes) {
      origin_us_ = std::min(origin_us_, node.shown.begin_us);
      end_us_ = std::max(end_us_, node.shown.end_us);
    }
    for (const NodeTimeline& node : timeline.nodes) add(node);
  }

  double height() const { return y_; }
  double end_ms() const { return std::max(ms(end_us_), 0.001); }
  const std::string& tics() const { return tics_; }
  const std::string& labels() const { return labels_; }
  const std::map<Lane, std::string>& data() const { return data_; }

 private:
  double ms(std::int64_t time_us) const { return static_cast<double>(time_us - origin_us_) / 1000; }

  void add(const NodeTimeline& node) {
    const double top = y_;
    labels_ += "set label " + gnuplot_quoted("node " + node.node) + " at graph 0.004, first " +
               number(top + header_height / 2) + " left front font ',11'\n";
    y_ += header_height;
    for (const Track& track : node.tracks)
      if (has_lane(track)) add(track);
    if (const auto busy = communications(node); !busy.empty())
      for (const Extent& gap : gaps(node.shown, busy)) add_box(Lane::idle, gap, top, y_);
    for (const Track& track : node.tracks)
      if (track.lane == Lane::iteration)
        for (const Mark& mark : track.marks) add_line(Lane::iteration, mark, top, y_);
    labels_ += "set arrow from graph 0, first " + number(y_) + " to graph 1, first " + number(y_) +
               " nohead front lc rgb '#444444'\n";
  }

  void add(const Track& track) {
    const double top = y_ + lane_margin;
    const double row_height = (1 - 2 * lane_margin) / track.rows;
    for (const Mark& mark : track.marks) {
      const double row_top = top + row_height * mark.row;
      if (track.is_of_instants())
        add_line(track.lane, mark, row_top, row_top + row_height);
      else
        add_box(track.lane, mark.extent, row_top, row_top + row_height);
    }
    if (track.lane == Lane::commit && track.marks.size() <= commit_labels_max) label(track, y_ + 0.5);
    tics_ += (tics_.empty() ? "" : ", ") + gnuplot_quoted(track.name) + " " + number(y_ + 0.5);
    ++y_;
  }

  void label(const Track& track, double y) {
    for (const Mark& mark : track.marks)
      if (mark.args.contains("iteration"))
        labels_ += "set label " + gnuplot_quoted(mark.args.at("iteration").dump()) + " at first " +
                   number(ms(mark.extent.begin_us)) + ", first " + number(y) + " left offset 0.4,0 front font ',9'\n";
  }

  void add_box(Lane lane, const Extent& extent, double top, double bottom) {
    const double begin = std::clamp(ms(extent.begin_us), 0.0, end_ms());
    const double end = std::clamp(ms(extent.end_us), 0.0, end_ms());
    data_[lane] += number(begin) + " " + number(top) + " " + number(begin) + " " + number(end) + " " + number(top) +
                   " " + number(bottom) + "\n";
  }
  void add_line(Lane lane, const Mark& mark, double top, double bottom) {
    data_[lane] += number(ms(mark.extent.begin_us)) + " " + number(top) + " 0 " + number(bottom - top) + "\n";
  }

  std::int64_t origin_us_ = 0;
  std::int64_t end_us_ = 0;
  double y_ = 0;
  std::string tics_, labels_;
  std::map<Lane, std::string> data_;
};

}  // namespace

std::string timeline_script(const Timeline& timeline, const std::string& path) {
  const Drawing drawing(timeline);
  const int height_px = std::min(150 + static_cast<int>(lane_px * drawing.height()), height_px_max);
  std::string title = "Job " + timeline.nodes.front().job + ": ";
  title += timeline.iterations == 0 ? "no whole iteration yet" : std::to_string(timeline.iterations) + " iterations";
  std::string script = gnuplot_output(path, width_px, height_px) + "set title " + gnuplot_quoted(title) + "\n";
  script += "set xlabel 'time (ms)'\nset xrange [0:" + number(drawing.end_ms()) + "]\nset yrange [" +
            number(drawing.height()) + ":0]\nset ytics scale 0 (" + drawing.tics() + ")\n";
  script += "set xtics out nomirror\nset key above center horizontal\nset border 3\n" + drawing.labels();
  std::string plots;
  for (const Look& look : looks) {
    const auto data = drawing.data().find(look.lane);
    if (data == drawing.data().end()) continue;
    const std::string block = "$lane" + std::to_string(static_cast<int>(look.lane));
    script += block + " << EOD\n" + data->second + "EOD\n";
    plots += (plots.empty() ? "plot " : ", ") + block + " using " +
             (look.lane == Lane::iteration || look.lane == Lane::commit ? "1:2:3:4" : "1:2:3:4:5:6") + " with " +
             look.style + " title " + gnuplot_quoted(look.title);
  }
  return script + plots + "\n";
}

}  // namespace ckpt::cli
