// LearnedDeadline says by when a rank should make its next mark. It learns this deadline from the times between earlier
// marks. Pure: callers pass times in, in seconds of any one clock. Not thread-safe.
//
// A rank makes a mark when a communication begins, when it ends, and when an iteration ends. Three durations have
// limits: from one mark to the next while the rank computes, from one mark to the next while it communicates, and all
// its computing in an iteration. Each limit is `factor` times the longest such time in the last 32 iterations, and at
// least `floor_s`. An iteration as a whole has no limit: its length depends on how long the rank waits for others.
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
  std::uint32_t iterations = 5;  // how many iterations to learn from before there is a deadline
};

class LearnedDeadline {
 public:
  explicit LearnedDeadline(const DeadlineOptions& options = {}) : options_(options) {}

  // Call this for every mark, in the order of the marks. If a mark's time is earlier than that of the mark before, the
  // earlier mark's time counts.
  void observe(const Mark& mark);
  // Call pause() when training begins to do something else, such as an evaluation or a restore, and resume() when that
  // has ended. There is no deadline until an iteration begins after resume(). Nothing is learned from iterations that
  // the pause touches, nor from the next one.
  void pause(double at_s);
  void resume(double at_s);
  // Call this if marks were lost. There is no deadline until the next iteration begins.
  void lost_marks(double now_s);
  // Makes all limits count anew from `now_s`. Call this if the calling process itself did not run for a while, until
  // `now_s`: then the rank may not have run either.
  void wait_again(double now_s);

  bool is_communicating() const { return open_ != 0; }
  bool is_paused() const { return is_paused_; }
  // How many communications have begun in this iteration. None if some marks of this iteration were not seen.
  std::optional<std::uint32_t> begun() const;
  // How many communications a whole iteration has. None until enough iterations in a row had the same number.
  std::optional<std::uint32_t> per_iteration() const;
  // The time of the last mark. 0: there was no mark yet.
  double marked_at_s() const { return marked_at_s_; }
  // The time by which the next mark should come. None during a pause, in an iteration whose beginning was not seen, and
  // until enough iterations are known.
  std::optional<double> due_s() const;
  // How long the rank computes in an iteration: the mean over the last 8 iterations, without the longest of them, which
  // may be an exception. None until enough iterations are known.
  std::optional<double> computing_s() const;

 private:
  // The times of one iteration.
  struct Slowest {
    double computing_s = 0;      // longest time between marks outside communications
    double communicating_s = 0;  // longest time between marks inside communications
    double computed_s = 0;       // all time outside communications
  };
  void pass(double at_s);
  void end_iteration();
  void disturb(std::uint32_t iterations);
  double allowed_s(double Slowest::*what) const;

  static constexpr std::size_t kept = 32;
  DeadlineOptions options_;
  std::array<Slowest, kept> last_{};
  std::size_t learned_ = 0;  // how many iterations were ever learned from
  Slowest current_;
  std::uint32_t skip_ = 2;  // how many iterations to learn nothing from, the current one included
  std::uint32_t late_ = 0;  // how many iterations in a row passed the deadline
  bool is_late_ = false;    // the current iteration has passed the deadline
  bool is_whole_ = false;   // all marks of the current iteration were seen, and no pause touched it
  bool is_paused_ = false;
  std::uint32_t open_ = 0;           // communications that have not ended
  std::uint32_t begun_ = 0;          // communications that have begun in this iteration
  std::uint32_t per_iteration_ = 0;  // communications in the last whole iteration
  std::uint32_t alike_ = 0;          // how many whole iterations in a row had per_iteration_ communications
  double marked_at_s_ = 0;
  double waits_from_s_ = 0;  // no limit counts from an earlier time
  double forgiven_s_ = 0;    // computing in this iteration that does not count, because it was before waits_from_s_
};

}  // namespace ckpt::schedule
