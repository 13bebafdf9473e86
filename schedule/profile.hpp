// Learns for the idle forecast when in an iteration training leaves the network idle (GEMINI, SOSP'23, section 5.4). It
// learns from iterations without checkpoint traffic, and again when training changes its pattern. No clock: callers
// pass times in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::schedule {

// A communication of training, in seconds since its iteration began.
struct Busy {
  double begin_s = 0;
  double end_s = 0;
};

struct IterationTimeline {
  double length_s = 0;
  std::vector<Busy> busy;  // sorted by beginning; they may overlap
};

// The spans in which no communication runs: before the first one, after each one until the next begins, and after the
// last one until the iteration ends. There is always one more than communications, so equal iterations compare. Where
// communications overlap, the span is 0.
std::vector<double> idle_spans_s(const IterationTimeline& timeline);

// Records when training communicated in an iteration, from its hooks. Times are of any one clock that does not run
// backwards. Wrong calls do no harm to training, and are reported in a sentence. An end without a beginning is ignored.
// A communication without an end lasts until the iteration ends.
class Recorder {
 public:
  void begin_iteration(double now_s);
  void comm_begin(double now_s);
  void comm_end(double now_s);  // ends the oldest open one: collectives of a channel end in order
  // Returns the iteration that began last. complaint() then says what was wrong in it; "" if nothing was.
  IterationTimeline end_iteration(double now_s);
  const std::string& complaint() const { return complaint_; }

 private:
  double began_s_ = 0;
  std::vector<Busy> busy_;
  std::size_t open_ = 0;  // the first one in busy_ that has not ended
  std::string complaint_;
};

struct IdleSpan {
  double start_s = 0;  // mean
  double mean_s = 0;
  double deviation_s = 0;  // standard deviation
  bool operator==(const IdleSpan&) const = default;
};

struct Profile {
  std::vector<IdleSpan> spans;
  double iteration_s = 0;           // mean
  double normalized_deviation = 0;  // sum of the spans' deviations / sum of their means; the paper: < 0.1
  std::uint32_t iterations = 0;     // how many it was learned from; 0: no profile yet
  double idle_s() const;
};

struct ProfilerOptions {
  std::uint32_t iterations = 20;  // to learn from
  std::uint32_t window = 10;      // this many iterations must show a change
  double drift = 0.2;             // change of the median idle time or length over a window
};

// Learns the profile from several iterations. Throws std::invalid_argument if an option is 0, negative or not a number.
class Profiler {
 public:
  // `known`: a profile to begin with; none if it was learned from 0 iterations.
  explicit Profiler(const ProfilerOptions& options = {}, Profile known = {});

  // Takes every iteration in turn. Ignores iterations that take more than twice the median, because something else
  // happened then.
  void add(const IterationTimeline& timeline);
  bool is_learning() const { return profile_.iterations == 0; }
  const Profile& profile() const { return profile_; }
  std::uint32_t relearned() const { return relearned_; }                           // how many times
  std::uint32_t seen() const { return static_cast<std::uint32_t>(seen_.size()); }  // iterations, while it is learning

 private:
  void learn();
  bool has_drifted(const IterationTimeline& timeline);
  void start_over();

  const ProfilerOptions options_;
  std::vector<IterationTimeline> seen_;    // while learning: iterations of one pattern
  std::vector<IterationTimeline> recent_;  // once learned: at most a window
  std::uint32_t strange_ = 0;              // iterations with another number of communications; once learned: in a row
  Profile profile_;
  std::uint32_t relearned_ = 0;
};

}  // namespace ckpt::schedule
