// A profile says at what times of an iteration training leaves the network idle (GEMINI, SOSP'23, section 5.4).
// Recorder records iterations. Profiler learns a profile from them, and learns again when training changes its pattern.
// GEMINI records iterations while no checkpoints are sent; here they may be sent meanwhile. No clock: callers pass
// times in. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::schedule {

// When one communication of training began and ended, in seconds since the iteration began.
struct Busy {
  double begin_s = 0;
  double end_s = 0;
};

struct IterationTimeline {
  double length_s = 0;
  std::vector<Busy> busy;  // sorted by beginning; they may overlap
};

// The lengths of the spans in which training does not communicate: before the first communication, from each one to the
// next, and from the last one to the end of the iteration. Between communications that overlap, the span has length 0.
// So iterations with equally many communications have equally many spans, one more than communications.
std::vector<double> idle_spans_s(const IterationTimeline& timeline);

// Records when training communicates in an iteration, as its hooks say. Times are of any one clock that does not run
// backwards. Calls that do not match do no harm to training: an end without a beginning is ignored, and a communication
// without an end counts until the iteration ends. complaint() reports them.
class Recorder {
 public:
  void begin_iteration(double now_s);
  void comm_begin(double now_s);
  void comm_end(double now_s);  // ends the oldest open communication: they end in the order of their beginnings
  // Ends the iteration that began last, and returns it. complaint() then says in a sentence which calls did not match,
  // or is "" if all did.
  IterationTimeline end_iteration(double now_s);
  const std::string& complaint() const { return complaint_; }

 private:
  double began_s_ = 0;
  std::vector<Busy> busy_;
  std::size_t open_ = 0;  // index of the first communication in busy_ that has not ended
  std::string complaint_;
};

// One idle span, over the iterations of a profile.
struct IdleSpan {
  double start_s = 0;      // mean time from the beginning of the iteration to the beginning of the span
  double mean_s = 0;       // mean length
  double deviation_s = 0;  // standard deviation of the length
  bool operator==(const IdleSpan&) const = default;
};

struct Profile {
  std::vector<IdleSpan> spans;
  double iteration_s = 0;           // mean length of an iteration
  double normalized_deviation = 0;  // sum of the spans' deviations / sum of their means; below 0.1 in the paper
  std::uint32_t iterations = 0;     // how many iterations it was learned from; 0: there is no profile
  double idle_s() const;            // mean idle time of an iteration
};

struct ProfilerOptions {
  std::uint32_t iterations = 20;  // how many iterations to learn from
  std::uint32_t window = 10;      // how many iterations must show another pattern before Profiler learns it
  double drift = 0.2;  // the pattern is another one if the median idle time or length differs by more than this share
};

class Profiler {
 public:
  // `known`: a profile to begin with. If its `iterations` is 0, there is none. Throws std::invalid_argument if an
  // option is 0, negative or not a number.
  explicit Profiler(const ProfilerOptions& options = {}, Profile known = {});

  // Adds an iteration. Call this for every iteration, in order. A profile leaves out iterations that took more than
  // twice the median, because training did something else in them.
  void add(const IterationTimeline& timeline);
  bool is_learning() const { return profile_.iterations == 0; }
  const Profile& profile() const { return profile_; }
  std::uint32_t relearned() const { return relearned_; }  // how often a profile was given up to learn another one
  std::uint32_t seen() const { return static_cast<std::uint32_t>(seen_.size()); }  // iterations learned from so far

 private:
  void learn();
  bool has_drifted(const IterationTimeline& timeline);
  void start_over();

  const ProfilerOptions options_;
  std::vector<IterationTimeline> seen_;    // while it learns: iterations of one pattern
  std::vector<IterationTimeline> recent_;  // while it has a profile: the last iterations, fewer than options_.window
  // How many iterations had another number of communications than the others. While there is a profile: how many in a
  // row.
  std::uint32_t strange_ = 0;
  Profile profile_;
  std::uint32_t relearned_ = 0;
};

}  // namespace ckpt::schedule
