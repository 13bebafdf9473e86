// LearnedDeadline says by when a rank should make its next mark, from how long its marks took before. Pure: callers
// pass times in, in seconds of any one clock.
//
// A rank makes a mark when a communication begins, when it ends, and when an iteration ends. Three times are limited:
// from one mark to the next while the rank computes, the same while it communicates, and all its computing in an
// iteration. Each limit is `factor` times the longest such time in the last iterations, and at least `floor_s`. An
// iteration as a whole has no limit: its length depends on how long the rank waits for others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "schedule/idle_forecast.hpp"

namespace ckpt::schedule {

struct DeadlineOptions {
  double floor_s = 2.5;
  double factor = 3;
  std::uint32_t iterations = 5;  // so many must be known before there is a deadline
};

class LearnedDeadline {
 public:
  explicit LearnedDeadline(const DeadlineOptions& options = {}) : options_(options) {}

  // Takes marks in the order in which they were made. A mark with an earlier time than the one before it counts as at
  // the same time.
  void observe(const Mark& mark);
  // Training does something else from `at_s` on: an evaluation, a restore, larger slots. There is no deadline until the
  // next iteration begins after resume(), and nothing is learned from an iteration that it touches, nor from the next.
  void pause(double at_s);
  void resume(double at_s);
  // Marks were lost. There is no deadline until the next iteration begins.
  void lost_marks(double now_s);
  // The observer slept until `now_s`, and perhaps the rank with it. The rank gets its whole time again.
  void wait_again(double now_s);

  bool is_communicating() const { return open_ != 0; }
  bool is_paused() const { return is_paused_; }
  // Communications that have begun in this iteration. Nothing if marks of this iteration were lost or never seen.
  std::optional<std::uint32_t> begun() const;
  // Communications in a whole iteration. Nothing before enough iterations in a row had equally many.
  std::optional<std::uint32_t> per_iteration() const;
  // The last mark. 0: none yet.
  double marked_at_s() const { return marked_at_s_; }
  // Nothing while paused, or before enough iterations are known.
  std::optional<double> due_s() const;
  // Mean time that the rank computes in an iteration, over the last few. Nothing before enough iterations are known.
  std::optional<double> computing_s() const;

 private:
  struct Slowest {
    double computing_s = 0;      // longest time between marks outside communications
    double communicating_s = 0;  // and inside them
    double computed_s = 0;       // all time outside communications
  };
  void pass(double at_s);
  void end_iteration();
  void disturb(std::uint32_t iterations);
  double allowed_s(double Slowest::*what) const;

  static constexpr std::size_t kept = 32;
  DeadlineOptions options_;
  std::array<Slowest, kept> last_{};
  std::size_t learned_ = 0;  // iterations, ever
  Slowest current_;
  std::uint32_t skip_ = 2;  // iterations to learn nothing from, the current one included
  std::uint32_t late_ = 0;  // iterations in a row that passed the deadline
  bool is_late_ = false;    // the current one did
  bool is_whole_ = false;   // this iteration was seen from its beginning
  bool is_paused_ = false;
  std::uint32_t open_ = 0;                       // communications
  std::uint32_t begun_ = 0;                      // in this iteration
  std::uint32_t per_iteration_ = 0, alike_ = 0;  // so many iterations in a row had so many communications
  double marked_at_s_ = 0;
  double waits_from_s_ = 0;  // the rank has its whole time from here on
  double forgiven_s_ = 0;    // computing of this iteration before that
};

}  // namespace ckpt::schedule
