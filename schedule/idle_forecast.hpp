// RankIdleForecast forecasts how long one rank's training will leave the network idle. It takes the marks of the rank's
// hooks, and learns a profile from them. The hooks are the calls by which training says that a communication or an
// iteration begins or ends. No clock: callers pass times in, in seconds of any one clock. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "schedule/profile.hpp"

namespace ckpt::schedule {

// What training does with the network. If the ranks that share a network differ, the state that comes last in this list
// counts.
enum class NetworkState {
  free,  // training does not limit sending: there are no hooks, or the trainer is silent
  idle,  // no communication is under way; IdleForecast::idle_s says for how long
  busy   // a communication is under way
};

struct IdleForecast {
  NetworkState state = NetworkState::free;
  double idle_s = 0;  // how long the network stays idle; infinite if the profile does not say; 0 if busy
};

// The forecast for a network that two ranks share: the one that allows less.
IdleForecast worse_of(const IdleForecast& a, const IdleForecast& b);

struct IdleForecastOptions {
  ProfilerOptions profiler;
  double usable = 0.9;  // mu of GEMINI: the share of an idle span to fill. The rest is a margin, because spans vary
  // A trainer counts as silent if it makes no mark for silence_s seconds and for three times the length of an
  // iteration. While that length is unknown, it counts as silent after first_silence_s seconds without a mark.
  double silence_s = 3;
  double first_silence_s = 10;
};

struct Mark {
  enum class Kind { begin, end, iteration } kind = Kind::begin;
  double at_s = 0;
};

class RankIdleForecast {
 public:
  // `known`: a profile from an earlier incarnation. It is used until training shows another pattern. If
  // known.iterations is 0, there is no such profile. Throws std::invalid_argument if an option is out of range (see
  // Profiler).
  explicit RankIdleForecast(const IdleForecastOptions& options = {}, const Profile& known = {});

  // Call this for every mark, in the order of the marks. If a mark's time is earlier than that of the mark before, the
  // earlier mark's time counts.
  void observe(const Mark& mark);
  // Call this if marks were lost. Nothing is learned from this iteration. Until the next iteration begins, the forecast
  // does not say how long the network stays idle.
  void lost_marks(double now_s);

  // `busy`: true if the control page shows a communication of training under way. The control page is newer than any
  // mark. While a profile is learned, the network counts as idle for any length whenever `busy` is false. So
  // checkpoints are sent from the first iteration on.
  IdleForecast idle_forecast(double now_s, bool busy) const;

  const Profile& profile() const { return profiler_.profile(); }
  // How many iterations the next profile has been learned from so far. None if nothing is being learned.
  std::optional<std::uint32_t> learned() const;
  std::uint32_t relearned() const { return profiler_.relearned(); }  // how often a profile was given up
  // How long an iteration takes; 0 if unknown.
  double iteration_s() const { return profiler_.is_learning() ? longest_s_ : profile().iteration_s; }
  // The usable part of an iteration's longest idle span. Infinite if there is no profile.
  double longest_idle_s() const;
  // Says in a sentence which calls of the hooks did not match in the last iteration, such as an end without a
  // beginning. "" if all matched.
  const std::string& complaint() const { return complaint_; }

 private:
  bool is_silent(double now_s) const;
  IdleSpan span(std::size_t number) const;
  double span_left_s(double now_s) const;
  void comm_began(double at_s);
  void iteration_ended(double at_s);

  const IdleForecastOptions options_;
  Recorder recorder_;
  Profiler profiler_;
  bool has_hooks_ = false;
  bool began_ = false;     // the beginning of an iteration was seen
  bool is_whole_ = false;  // all marks of this iteration were seen, and they are not too many to learn from
  std::size_t open_ = 0;   // communications that have not ended
  std::size_t begun_ = 0;  // communications that have begun in this iteration
  std::size_t span_ = 0;   // communications that have ended in this iteration: the number of the present idle span
  double span_began_s_ = 0;
  double last_mark_s_ = 0;
  double iteration_began_s_ = 0;
  double longest_s_ = 0;  // length of the longest of the last iterations; older ones count less and less
  std::string complaint_;
};

}  // namespace ckpt::schedule
