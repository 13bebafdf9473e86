// How long the network of one rank will stay idle, from what its hooks tell and the profile that was learned from them.
// Pure: times are handed in, in seconds of any one clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "schedule/profile.hpp"

namespace ckpt::schedule {

// In the order of what counts where several ranks share a network.
enum class NetworkState {
  free,     // nothing is known that speaks against sending: no hooks, or a trainer that has fallen silent
  idle,     // for idle_s, as far as the profile goes; infinite where it says nothing
  busy,     // a communication is under way
  learning  // a profile is being learned from iterations without checkpoint traffic
};

struct IdleForecast {
  NetworkState state = NetworkState::free;
  double idle_s = 0;
};

// Of ranks that share a network.
IdleForecast worse_of(const IdleForecast& a, const IdleForecast& b);

struct IdleForecastOptions {
  ProfilerOptions profiler;
  double usable = 0.9;  // mu: of a span, for spans vary between iterations
  // A trainer without any mark for this long, and for three iterations, is taken for silent.
  double silence_s = 3;
  double first_silence_s = 10;  // likewise, while it is not known how long its iterations are
  double quiet_s = 1800;        // longest that a profile is learned in quiet
};

struct Mark {
  enum class Kind { begin, end, iteration } kind = Kind::begin;
  double at_s = 0;
};

class RankIdleForecast {
 public:
  // `known`: a profile from an earlier incarnation, to be believed until training shows another pattern; none where it
  // was learned from nothing. Throws std::invalid_argument as Profiler does.
  explicit RankIdleForecast(const IdleForecastOptions& options = {}, const Profile& known = {});

  // In the order in which they were made; a mark before the one before it counts as at the same time.
  void observe(const Mark& mark);
  // Marks were lost: this iteration teaches nothing, and where it stands is not known until the next one begins.
  void lost_marks(double now_s);

  // `busy`: whether a communication is under way, as the gate says, which is newer than any mark. `quiet`: whether
  // nothing may be sent while a profile is being learned; else the gate alone decides meanwhile. Training that shows no
  // pattern is not waited for: quiet ends after twice as many iterations as a profile takes, and after quiet_s.
  IdleForecast idle_forecast(double now_s, bool busy, bool quiet) const;

  const Profile& profile() const { return profiler_.profile(); }
  // Iterations that the profile being learned has so far; nothing once it is there.
  std::optional<std::uint32_t> learned() const;
  std::uint32_t relearned() const { return profiler_.relearned(); }
  // How long an iteration takes; 0 while unknown.
  double iteration_s() const { return profiler_.is_learning() ? longest_s_ : profile().iteration_s; }
  // The usable part of an iteration's longest idle span; infinite while there is no profile.
  double longest_idle_s() const;
  const std::string& complaint() const { return complaint_; }  // about unbalanced hooks; "" if none

 private:
  bool is_silent(double now_s) const;
  bool may_learn_in_quiet(double now_s) const;
  IdleSpan span(std::size_t number) const;
  double span_left_s(double now_s) const;
  void comm_began(double at_s);
  void iteration_ended(double at_s);

  const IdleForecastOptions options_;
  Recorder recorder_;
  Profiler profiler_;
  bool has_hooks_ = false;
  std::uint32_t iterations_ = 0;
  double first_mark_s_ = -1;
  bool began_ = false;     // an iteration of which the beginning is known
  bool is_whole_ = false;  // and of which no mark was lost
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
