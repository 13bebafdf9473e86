#include "placement/odds/planner/model.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace ckpt::planner {
namespace {

struct Totals {
  double failures_per_s = 0;
  BySource<double> by_source = {};  // failures per second that end a run, by the source that the job goes on from
  // Means over all failures, in seconds.
  double detection_s = 0;
  double restart_s = 0;
  double lag_s = 0;
  double redone_s = 0;  // half an interval between two states
  double chain_s = 0;   // how long the job is down, with the failures that strike meanwhile
};

void add(Totals& totals, const Behavior& what, Fault fault, Source source, double rate_per_s) {
  totals.failures_per_s += rate_per_s;
  totals.detection_s += rate_per_s * what.detection_s;
  totals.restart_s += rate_per_s * what.restart_s[index(fault)][index(source)];
  totals.lag_s += rate_per_s * what.lag_s[index(source)];
  totals.redone_s += rate_per_s * what.every_s[index(source)] / 2;
}

constexpr std::array<Fault, fault_count> all_faults = {Fault::process, Fault::node, Fault::domain};

// A chain of failures: one that ends a run of training, and those that strike while the job is down. Each of them
// begins the recovery again, from the oldest source that any of them needs.
class Chain {
 public:
  Chain(const Behavior& what, const Rates& rates, double failures_per_s)
      : what_(what), rates_(rates), failures_per_s_(failures_per_s) {
    for (std::size_t oldest = source_count; oldest-- > 0;) down_s_[oldest] = down_s(oldest);
  }

  // The mean time that the job is down.
  double seconds() const { return down_s_[0]; }

  // The probability that the job goes on from this source.
  double share(std::size_t source) const { return up_to(source) - (source == 0 ? 0 : up_to(source - 1)); }

 private:
  double odds(Fault fault, std::size_t source) const { return rates_[index(fault)][source] / failures_per_s_; }
  // The probability that another failure strikes before the recovery from this one ends.
  double struck(Fault fault, std::size_t source) const {
    return -std::expm1(-failures_per_s_ * (what_.detection_s + what_.restart_s[index(fault)][source]));
  }

  // The mean time that the job is still down after the next failure. `oldest`: the oldest source that the chain has
  // needed so far.
  double down_s(std::size_t oldest) const {
    double ends_s = 0, again = 0;
    for (const Fault fault : all_faults) {
      for (std::size_t source = 0; source < source_count; ++source) {
        if (odds(fault, source) == 0) continue;
        const double further = struck(fault, std::max(source, oldest));
        ends_s += odds(fault, source) * further / failures_per_s_;
        if (source > oldest) ends_s += odds(fault, source) * further * down_s_[source];
        if (source <= oldest) again += odds(fault, source) * further;
      }
    }
    return again < 1 ? ends_s / (1 - again) : never_s;
  }

  // The probability that no failure of the chain needs an older source than `oldest`.
  double up_to(std::size_t oldest) const {
    double ends = 0, again = 0;
    for (const Fault fault : all_faults) {
      for (std::size_t source = 0; source <= oldest; ++source) {
        ends += odds(fault, source) * (1 - struck(fault, source));
        again += odds(fault, source) * struck(fault, source);
      }
    }
    return again < 1 ? std::min(1.0, ends / (1 - again)) : 0;
  }

  const Behavior& what_;
  const Rates& rates_;
  double failures_per_s_;
  BySource<double> down_s_ = {};
};

Totals totals_of(const Behavior& what, const Rates& rates) {
  Totals totals;
  for (const Fault fault : all_faults)
    for (const Source source : {Source::replica, Source::memory, Source::storage})
      add(totals, what, fault, source, rates[index(fault)][index(source)]);
  if (totals.failures_per_s <= 0) return totals;
  for (double* sum : {&totals.detection_s, &totals.restart_s, &totals.lag_s, &totals.redone_s})
    *sum /= totals.failures_per_s;
  const Chain chain(what, rates, totals.failures_per_s);
  totals.chain_s = chain.seconds();
  for (std::size_t source = 0; source < source_count; ++source)
    totals.by_source[source] = totals.failures_per_s * chain.share(source);
  return totals;
}

double steady_share(const Behavior& what) {
  return what.slowdown_share + (what.capture_every_s > 0 ? what.stall_s / what.capture_every_s : 0);
}

double first_order_wasted(const Behavior& what, const Totals& totals) {
  const double w = steady_share(what) +
                   totals.failures_per_s * (totals.detection_s + totals.restart_s + totals.lag_s + totals.redone_s);
  return w / (1 + w);
}

// An interval of training between two states of a source. After a failure that goes back to this source or to a newer
// one, the interval begins again. After a failure that goes back to an older source, the job leaves the interval.
struct Interval {
  double log_success = 0;  // ln of the probability that the job ends the interval without leaving it
  double spent_s = 0;      // mean time until the job ends or leaves it
};

// `count` small intervals in a row make one interval of an older source. `own_share`: of the failures that leave a
// small interval, the share that goes back to the older source, and so begins the whole row again.
Interval row_of(const Interval& small, double count, double own_share) {
  const double log_all = count * small.log_success;
  const double left = -std::expm1(log_all);
  const double spent_s = small.log_success == 0 ? count * small.spent_s
                                                : small.spent_s * std::expm1(log_all) / std::expm1(small.log_success);
  const double kept = 1 - left * std::min(1.0, own_share);
  return {log_all - std::log(kept), spent_s / kept};
}

// The share of the elapsed time that trains.
double effective_time(const Behavior& what, const Totals& totals) {
  const double wall_per_s = 1 + steady_share(what);
  double every_s = 0, left_per_s = totals.failures_per_s;
  double kept = 1;  // probability that no failure comes before a new state can be restored
  Interval interval;
  for (std::size_t source = 0; source < source_count; ++source) {
    const double own_per_s = totals.by_source[source];
    if (what.every_s[source] <= 0) {
      if (own_per_s > 0) return 0;  // after such a failure, the job has no state to go on from
      continue;
    }
    kept *= std::exp(-own_per_s * what.lag_s[source]);
    if (every_s == 0) {
      every_s = what.every_s[source];
      const double run = left_per_s * every_s * wall_per_s;
      const double down = left_per_s * totals.chain_s;
      interval = {-run, left_per_s > 0 ? -std::expm1(-run) / left_per_s * (1 + down) : every_s * wall_per_s};
      interval = row_of(interval, 1, left_per_s > 0 ? own_per_s / left_per_s : 0);
    } else if (left_per_s > 0 && own_per_s > 0) {
      interval = row_of(interval, what.every_s[source] / every_s, own_per_s / left_per_s);
      every_s = what.every_s[source];
    }
    left_per_s = std::max(0.0, left_per_s - own_per_s);
    if (left_per_s < 1e-12 * totals.failures_per_s) left_per_s = 0;
  }
  return interval.spent_s > 0 && std::isfinite(interval.spent_s) ? kept * every_s / interval.spent_s : 0;
}

Split split_of(const Behavior& what, const Totals& totals, double effective_time) {
  Split split;
  const double down_s = totals.detection_s + totals.restart_s;
  const double per_run = totals.failures_per_s * totals.chain_s;
  const double down = std::isfinite(per_run) ? per_run / (1 + per_run) : 1;
  split.detection = down_s > 0 ? down * totals.detection_s / down_s : 0;
  split.restart = down_s > 0 ? down * totals.restart_s / down_s : 0;
  split.steady = effective_time * steady_share(what);
  split.redone = std::max(0.0, 1 - effective_time - split.steady - split.detection - split.restart);
  return split;
}

}  // namespace

double best_frequency_per_s(double failures_per_s, double overhead_s) {
  return std::sqrt(failures_per_s / (2 * overhead_s));
}

Appraisal appraise(const Behavior& what, const Rates& rates) {
  const Totals totals = totals_of(what, rates);
  Appraisal found;
  found.effective_time = effective_time(what, totals);
  found.split = split_of(what, totals, found.effective_time);
  found.first_order_wasted = first_order_wasted(what, totals);
  found.failures_per_s = totals.failures_per_s;
  found.storage_losses_per_s = totals.by_source[index(Source::storage)] / (1 + totals.failures_per_s * totals.chain_s);
  return found;
}

}  // namespace ckpt::planner
