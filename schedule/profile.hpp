// Where in an iteration the network is idle, learned from iterations without checkpoint traffic (GEMINI, SOSP'23,
// section 5.4), and learned again when training changes its pattern. Pure: times are handed in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::schedule {

// A training communication, in seconds since its iteration began.
struct Busy {
  double begin_s = 0;
  double end_s = 0;
};

struct IterationTimeline {
  double length_s = 0;
  std::vector<Busy> busy;  // by beginning; they may overlap
};

// The spans in which no communication runs: before the first one, after each one until the next begins, and after the
// last one until the iteration ends. Always one more than communications, so that those of equal iterations compare; 0
// where communications overlap.
std::vector<double> idle_spans_s(const IterationTimeline& timeline);

// Puts together the timeline of an iteration from what hooks tell as it passes. Times are of any one clock that does
// not run backwards. What is unbalanced costs a sentence and never training: an end without a beginning counts for
// nothing, and a communication without an end lasts until the iteration ends.
class Recorder {
 public:
  void begin_iteration(double now_s);
  void comm_begin(double now_s);
  void comm_end(double now_s);  // of the one that began first and has not ended: collectives of a channel end in order
  // The iteration that began last, and what was amiss in it, "" where nothing was.
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
  double normalized_deviation = 0;  // of the spans, each weighted by its length: the paper saw less than 0.1
  std::uint32_t iterations = 0;     // that it was learned from; 0: nothing yet
  double idle_s() const;
};

struct ProfilerOptions {
  std::uint32_t iterations = 20;  // to learn from
  std::uint32_t window = 10;      // iterations that have to tell of a change before it is believed
  double drift = 0.2;             // of the median idle time or length over a window
};

// Throws std::invalid_argument for options that are 0, negative or no numbers.
class Profiler {
 public:
  // `known`: a profile to begin with, learned from as many iterations as it says; 0: none.
  explicit Profiler(const ProfilerOptions& options = {}, Profile known = {});

  // Of every iteration, in turn. Those that take more than twice the median teach nothing: something else went on.
  void add(const IterationTimeline& timeline);
  bool is_learning() const { return profile_.iterations == 0; }
  const Profile& profile() const { return profile_; }
  std::uint32_t relearned() const { return relearned_; }                           // how often
  std::uint32_t seen() const { return static_cast<std::uint32_t>(seen_.size()); }  // iterations, while it is learning

 private:
  void learn();
  bool has_drifted(const IterationTimeline& timeline);
  void start_over();

  const ProfilerOptions options_;
  std::vector<IterationTimeline> seen_;    // while learning: of one pattern
  std::vector<IterationTimeline> recent_;  // since: at most a window
  std::uint32_t strange_ = 0;              // iterations with another number of communications; once learned: in a row
  Profile profile_;
  std::uint32_t relearned_ = 0;
};

}  // namespace ckpt::schedule
