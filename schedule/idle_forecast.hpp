// Forecasts how long one rank's training will leave the network idle. It takes the marks of the rank's hooks, and
// learns a profile from them. It has no clock: callers pass times in, in seconds of any one clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "schedule/profile.hpp"

namespace ckpt::schedule {

// What the network is doing. If several ranks share a network, the last of these states counts.
enum class NetworkState {
  free,  // no reason not to send: no hooks, or a silent trainer
  idle,  // for idle_s, by the profile; infinite without one
  busy   // a communication is under way
};

struct IdleForecast {
  NetworkState state = NetworkState::free;
  double idle_s = 0;
};

// The forecast for two ranks that share a network.
IdleForecast worse_of(const IdleForecast& a, const IdleForecast& b);

struct IdleForecastOptions {
  ProfilerOptions profiler;
  double usable = 0.9;  // mu: the share of a span that is used, because spans vary between iterations
  // A trainer is silent if it made no mark for this long and for three iterations.
  double silence_s = 3;
  double first_silence_s = 10;  // the same while the length of its iterations is unknown
};

struct Mark {
  enum class Kind { begin, end, iteration } kind = Kind::begin;
  double at_s = 0;
};

class RankIdleForecast {
 public:
  // `known`: a profile from an earlier incarnation, used until training shows another pattern. A profile learned from 0
  // iterations is none. Throws std::invalid_argument as Profiler does.
  explicit RankIdleForecast(const IdleForecastOptions& options = {}, const Profile& known = {});

  // Takes marks in the order in which they were made. A mark with an earlier time than the one before it counts as at
  // the same time.
  void observe(const Mark& mark);
  // Marks were lost. Nothing is learned from this iteration, and its position is unknown until the next one begins.
  void lost_marks(double now_s);

  // `busy`: whether the gate says that a communication is under way. The gate is newer than any mark. While a profile
  // is being learned, the gate alone decides, so a job is protected before its pattern is known.
  IdleForecast idle_forecast(double now_s, bool busy) const;

  const Profile& profile() const { return profiler_.profile(); }
  // How many iterations the profile being learned has so far. Nothing once it is complete.
  std::optional<std::uint32_t> learned() const;
  std::uint32_t relearned() const { return profiler_.relearned(); }
  // How long an iteration takes; 0 if unknown.
  double iteration_s() const { return profiler_.is_learning() ? longest_s_ : profile().iteration_s; }
  // The usable part of an iteration's longest idle span. Infinite if there is no profile.
  double longest_idle_s() const;
  const std::string& complaint() const { return complaint_; }  // unbalanced hooks; "" if none

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
  bool began_ = false;     // the beginning of this iteration is known
  bool is_whole_ = false;  // and no mark of it was lost
  std::size_t open_ = 0;   // communications that have not ended
  std::size_t begun_ = 0;  // in this iteration
  std::size_t span_ = 0;   // communications that have ended in this iteration
  double span_began_s_ = 0;
  double last_mark_s_ = 0;
  double iteration_began_s_ = 0;
  double longest_s_ = 0;  // of the last iterations
  std::string complaint_;
};

}  // namespace ckpt::schedule
