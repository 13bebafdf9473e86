#include "placement/odds/planner/simulation.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "placement/odds/planner/standby_pool.hpp"

namespace ckpt::planner {
namespace {

// A run: training from one restored state until the next failure. A position is how far training is, in seconds of
// training since the job's start.
class Run {
 public:
  Run(const Behavior& what, double began_s, double began_at)
      : what_(what),
        slow_(1 + what.slowdown_share),
        began_s_(began_s),
        began_at_(began_at),
        first_(next_multiple(began_at, what.capture_every_s)),
        period_s_(what.stall_s + what.capture_every_s * slow_) {}

  double began_at() const { return began_at_; }
  double began_s() const { return began_s_; }

  double position(double now_s) const {
    const double left_s = now_s - began_s_ - (first_ - began_at_) * slow_;
    if (left_s < 0) return began_at_ + (now_s - began_s_) / slow_;
    const double passed = std::floor(left_s / period_s_);
    const double since_s = left_s - passed * period_s_;
    return first_ + passed * what_.capture_every_s + std::max(0.0, since_s - what_.stall_s) / slow_;
  }

  // When training passes the position. If it captures there, before that stall.
  double passes_s(double position) const {
    const double captures = position <= first_ ? 0 : std::ceil((position - first_) / what_.capture_every_s - 1e-9);
    return began_s_ + (position - began_at_) * slow_ + captures * what_.stall_s;
  }

  // The position of the newest capture of this run that can be restored, or -1.
  double captured(double now_s) const {
    const double left_s = now_s - passes_s(first_) - what_.stall_s - what_.lag_s[index(Source::memory)];
    return left_s < 0 ? -1 : first_ + std::floor(left_s / period_s_) * what_.capture_every_s;
  }

 private:
  static double next_multiple(double position, double every) {
    return (std::floor(position / every + 1e-9) + 1) * every;
  }

  const Behavior& what_;
  double slow_;
  double began_s_;
  double began_at_;
  double first_;  // position of this run's first capture
  double period_s_;
};

// The checkpoints on storage: the newest whole one, and those still being written.
class Stored {
 public:
  explicit Stored(const Behavior& what)
      : every_(what.every_s[index(Source::storage)]), lag_s_(what.lag_s[index(Source::storage)]) {
    // Without captures into memory, training stands still until the checkpoint is whole.
    if (what.every_s[index(Source::memory)] <= 0) lag_s_ += what.stall_s;
  }

  // Adds the checkpoints on storage that the run has begun up to `position`.
  void pass(const Run& run, double position, double now_s) {
    if (every_ <= 0) return;
    const double first = (std::floor(run.began_at() / every_ + 1e-9) + 1) * every_;
    const double last = std::floor(position / every_ + 1e-9) * every_;
    // Checkpoints begun more than lag_s_ ago are whole. Only the newest of these matters.
    const double settled = std::floor(run.position(std::max(run.began_s(), now_s - lag_s_)) / every_) * every_;
    for (double each = std::max(first, settled); each <= last + every_ / 2; each += every_) {
      if (each > run.began_at() && each <= position) writing_.push_back({each, run.passes_s(each) + lag_s_});
    }
    finish(now_s);
  }
  double newest() const { return whole_; }
  // Forgets the unfinished checkpoints of states beyond `position`, which no longer exist.
  void go_back_to(double position) {
    std::erase_if(writing_, [&](const Writing& each) { return each.position > position; });
  }

 private:
  struct Writing {
    double position;
    double ready_s;
  };
  void finish(double now_s) {
    for (const Writing& each : writing_)
      if (each.ready_s <= now_s) whole_ = std::max(whole_, each.position);
    std::erase_if(writing_, [&](const Writing& each) { return each.ready_s <= now_s; });
  }

  double every_;
  double lag_s_;
  double whole_ = 0;
  std::vector<Writing> writing_;
};

class Simulation {
 public:
  Simulation(const Inputs& inputs, const Holdings& holdings, const Behavior& what, FailureSource& failures)
      : holdings_(holdings),
        what_(what),
        failures_(failures),
        standby_(inputs.cluster.standby_nodes),
        stored_(what),
        lost_(inputs.cluster.nodes()) {}

  Simulated run(double elapsed_s) {
    double now_s = 0, position = 0;
    const Failure* failure = &failures_.next();
    while (now_s < elapsed_s) {
      const Run run(what_, now_s, position);
      const double until_s = std::min(elapsed_s, failure->at_s);
      now_s = until_s;
      position = run.position(until_s);
      if (failure->at_s >= elapsed_s) break;
      note_states(run, position, until_s);
      now_s = std::min(elapsed_s, recover(failure, until_s, elapsed_s));
      position = restored_;
    }
    result_.elapsed_s = elapsed_s;
    result_.effective_time = position / elapsed_s;
    account(position, elapsed_s);
    return result_;
  }

 private:
  // Notes the newest state of each source when a run ends.
  void note_states(const Run& run, double position, double now_s) {
    const double live_every = what_.every_s[index(Source::replica)];
    const double captured = run.captured(now_s);
    newest_[index(Source::memory)] = std::max(captured, newest_[index(Source::memory)]);
    newest_[index(Source::replica)] = live_every > 0 ? std::floor(position / live_every + 1e-9) * live_every : 0;
    stored_.pass(run, position, now_s);
    newest_[index(Source::storage)] = stored_.newest();
  }

  Source source_left() const {
    if (what_.every_s[index(Source::replica)] > 0 && holdings_.replicas_survive(lost_)) return Source::replica;
    if (what_.every_s[index(Source::memory)] > 0 && holdings_.memory_survives(lost_)) return Source::memory;
    return Source::storage;
  }

  // Simulates from a failure at `began_s` until training goes on, and returns that time. Failures meanwhile begin the
  // recovery again. Sets restored_, and `failure` to the next failure.
  double recover(const Failure*& failure, double began_s, double elapsed_s) {
    if (began_s > protected_s_) lost_.clear();
    double ends_s = began_s, all_ready_s = began_s;
    Source source = Source::replica;
    do {
      const double at_s = failure->at_s;
      for (const std::uint32_t node : failure->nodes) lost_.add(node);
      if (source != Source::storage) source = std::max(source, source_left());
      const double ready_s = standby_.take(failure->nodes.size(), at_s, failure->repaired_at_s);
      const double acted_s = std::max(at_s + what_.detection_s, ready_s);
      all_ready_s = std::max(all_ready_s, ready_s);
      ends_s = std::max(ends_s, acted_s + what_.restart_s[index(failure->fault)][index(source)]);
      ++result_.failures;
      failure = &failures_.next();
      result_.split.detection += std::min({what_.detection_s, failure->at_s - at_s, elapsed_s - at_s});
    } while (failure->at_s < ends_s && failure->at_s < elapsed_s);
    down_s_ += std::min(ends_s, elapsed_s) - began_s;
    result_.waited_s += std::max(0.0, std::min(all_ready_s, elapsed_s) - began_s - what_.detection_s);
    result_.storage_losses += source == Source::storage ? 1 : 0;
    go_back(source);
    protected_s_ = ends_s + what_.refetch_s;
    return ends_s;
  }

  void go_back(Source source) {
    restored_ = newest_[index(source)];
    if (source == Source::replica) restored_ = std::max(restored_, newest_[index(Source::memory)]);
    if (source == Source::storage) newest_[index(Source::memory)] = restored_;
    newest_[index(Source::memory)] = std::min(newest_[index(Source::memory)], restored_);
    stored_.go_back_to(restored_);
  }

  void account(double position, double elapsed_s) {
    Split& split = result_.split;
    const double stalled_s =
        what_.capture_every_s > 0 ? std::floor(position / what_.capture_every_s + 1e-9) * what_.stall_s : 0;
    split.detection /= elapsed_s;
    split.restart = std::max(0.0, down_s_ / elapsed_s - split.detection);
    const double rest = std::max(0.0, 1 - result_.effective_time - split.detection - split.restart);
    // The last stall may not be over yet.
    split.steady = std::min(rest, (position * what_.slowdown_share + stalled_s) / elapsed_s);
    split.redone = rest - split.steady;
  }

  const Holdings& holdings_;
  const Behavior& what_;
  FailureSource& failures_;
  StandbyPool standby_;
  Stored stored_;
  placement::LostNodes lost_;  // nodes lost since memory was last protected
  BySource<double> newest_ = {0, 0, 0};
  double restored_ = 0;
  double protected_s_ = 0;  // the time at which memory is protected again
  double down_s_ = 0;
  Simulated result_;
};

}  // namespace

Simulated simulate(const Inputs& inputs, const Holdings& holdings, const Behavior& what, FailureSource& failures,
                   double elapsed_s) {
  return Simulation(inputs, holdings, what, failures).run(elapsed_s);
}

}  // namespace ckpt::planner
