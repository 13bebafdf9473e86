#include "placement/odds/planner/planner.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <stdexcept>

namespace ckpt::planner {
namespace {

constexpr double most_storage_every_s = 86'400;  // once a day
constexpr double same_effective_time = 2e-4;     // schemes that differ by less count as equally good
constexpr double commit_margin = 0.8;            // with two slots, the share of the time between captures to commit in

// Two slots are enough if each checkpoint is committed before the next capture. Otherwise the engine adds a third.
std::uint32_t slots_needed(const Inputs& in, const Setting& setting) {
  const Behavior what = behavior(in, setting);
  return what.lag_s[index(Source::memory)] <= commit_margin * what.capture_every_s ? 2 : 3;
}

// Numbers from `least` up to 8 times `best`, each about 1.4 times the one before, and `best`. `best`: by the formula.
std::vector<double> iterations_to_try(double least, double best) {
  std::vector<double> tried;
  const double most = std::max(least, 8 * best);
  for (double iterations = least; iterations <= most;
       iterations = std::max(iterations + 1, std::floor(iterations * 1.4)))
    tried.push_back(iterations);
  if (best > least) tried.push_back(std::round(best));
  return tried;
}

std::vector<double> storage_intervals_to_try(const Inputs& in, double losses_per_s) {
  const double write_s = in.job.state_bytes / in.cluster.storage_bytes_per_s;
  const double overhead_s = std::max(1e-3, in.overheads.storing_share * write_s);
  const double best_s = losses_per_s > 0 ? 1 / best_frequency_per_s(losses_per_s, overhead_s) : most_storage_every_s;
  std::vector<double> tried;
  for (const double factor : {0.5, 0.7, 1.0, 1.4, 2.0}) {
    const double every_s =
        std::ceil(std::clamp(best_s * factor, std::max(1.0, write_s), std::max(most_storage_every_s, write_s)));
    if (std::find(tried.begin(), tried.end(), every_s) == tried.end()) tried.push_back(every_s);
  }
  return tried;
}

// The effective time of the recommended row, or 0 if no row is recommended.
double reached(const Plan& plan) {
  return plan.recommended ? plan.rows[*plan.recommended].appraisal.effective_time : 0;
}

// True if both schemes hold the same pieces in memory. They then share one Holdings.
bool hold_alike(const Scheme& a, const Scheme& b) {
  const bool a_stops = a.capture == Capture::stop_and_write, b_stops = b.capture == Capture::stop_and_write;
  return a.protection == b.protection && a_stops == b_stops;
}

struct Change {
  const char* text;
  std::function<void(Inputs&)> apply;
};

std::vector<Change> changes(const Inputs& in) {
  std::vector<Change> all = {
      {"restart in half the time", [](Inputs& to) { to.job.restart_s /= 2; }},
      {"detect failures in half the time", [](Inputs& to) { to.job.detection_s /= 2; }},
      {"half as many failures", [](Inputs& to) { to.failures.gpu_mtbf_s *= 2; }},
      {"copies that do not slow iterations down", [](Inputs& to) { to.overheads.traffic_share = 0; }},
      {"twice the network", [](Inputs& to) { to.cluster.network_bytes_per_s *= 2; }},
      {"twice the storage bandwidth", [](Inputs& to) { to.cluster.storage_bytes_per_s *= 2; }},
      {"twice the memory for checkpoints", [](Inputs& to) { to.cluster.memory_bytes_per_node *= 2; }},
  };
  if (in.cluster.standby_nodes == 0)
    all.push_back({"standby nodes instead of ordering nodes", [](Inputs& to) { to.cluster.standby_nodes = 1; }});
  return all;
}

}  // namespace

Planner::Planner(const Inputs& inputs, std::vector<Scheme> schemes) : inputs_(inputs), schemes_(std::move(schemes)) {
  check(inputs);
  for (std::size_t i = 0; i < schemes_.size(); ++i) {
    std::shared_ptr<const Holdings> found;
    const bool is_possible = why_not(inputs, schemes_[i]).empty();
    for (std::size_t j = 0; j < i && is_possible && found == nullptr; ++j)
      if (hold_alike(schemes_[i], schemes_[j])) found = holdings_[j];
    if (is_possible && found == nullptr) found = std::make_shared<const Holdings>(inputs, schemes_[i]);
    holdings_.push_back(std::move(found));
  }
}

const Holdings& Planner::holdings(const Scheme& scheme) const {
  for (std::size_t i = 0; i < schemes_.size(); ++i)
    if (schemes_[i].name == scheme.name && holdings_[i]) return *holdings_[i];
  throw std::invalid_argument(why_not(inputs_, scheme));
}

std::vector<Setting> settings_to_try(const Inputs& in, const Holdings& holdings, const Scheme& scheme) {
  const bool stops = scheme.capture == Capture::stop_and_write;
  const Setting most_often{scheme, 1, stops ? never_s : most_storage_every_s};
  const Behavior what = behavior(in, most_often);
  const Rates rates = failure_rates(in, holdings, what);
  const Appraisal found = appraise(what, rates);
  const double overhead_s = std::max(1e-6, what.stall_s + what.slowdown_share * what.lag_s[index(Source::memory)]);
  const double best_s = 1 / best_frequency_per_s(found.failures_per_s, overhead_s);
  std::vector<Setting> tried;
  for (const double iterations : scheme.every_iteration
                                     ? std::vector<double>{what.least_iterations}
                                     : iterations_to_try(what.least_iterations, best_s / in.job.iteration_s)) {
    for (const double storage_s :
         stops ? std::vector<double>{never_s} : storage_intervals_to_try(in, found.storage_losses_per_s)) {
      tried.push_back({scheme, iterations, storage_s});
      tried.back().own_slots = slots_needed(in, tried.back());
    }
  }
  return tried;
}

Candidate Planner::candidate(const Inputs& in, const Setting& setting) const {
  Candidate found{setting, behavior(in, setting), {}, {}, {}};
  found.rates = failure_rates(in, holdings(setting.scheme), found.behavior);
  found.appraisal = appraise(found.behavior, found.rates);
  found.why_not = why_too_large(in, setting, found.behavior);
  return found;
}

Candidate Planner::best_candidate(const Inputs& in, std::size_t scheme_number) const {
  const Scheme& scheme = schemes_[scheme_number];
  if (!holdings_[scheme_number]) return {{scheme, 0, never_s, 0}, {}, {}, {}, why_not(in, scheme)};
  std::optional<Candidate> best;
  for (const Setting& setting : settings_to_try(in, *holdings_[scheme_number], scheme)) {
    Candidate found = candidate(in, setting);
    const bool is_better =
        !best || (found.fits() && !best->fits()) ||
        (found.fits() == best->fits() && found.appraisal.effective_time > best->appraisal.effective_time);
    if (is_better) best = std::move(found);
  }
  return *best;
}

Plan Planner::plan(const Inputs& in) const {
  Plan plan;
  double most = 0;
  const auto is_eligible = [](const Candidate& row) {
    return row.fits() && row.setting.scheme.availability == Availability::option;
  };
  for (std::size_t scheme = 0; scheme < schemes_.size(); ++scheme) {
    plan.rows.push_back(best_candidate(in, scheme));
    if (is_eligible(plan.rows.back())) most = std::max(most, plan.rows.back().appraisal.effective_time);
  }
  const auto found = std::find_if(plan.rows.begin(), plan.rows.end(), [&](const Candidate& row) {
    return is_eligible(row) && row.appraisal.effective_time >= most - same_effective_time;
  });
  if (found != plan.rows.end()) plan.recommended = found - plan.rows.begin();
  return plan;
}

std::vector<Lever> Planner::levers() const {
  std::vector<Lever> found;
  for (const Change& change : changes(inputs_)) {
    Inputs changed = inputs_;
    change.apply(changed);
    found.push_back({change.text, reached(plan(changed))});
  }
  if (inputs_.failures.domain_nodes > 0 && !inputs_.failures.domains_named) {
    Inputs named = inputs_;
    named.failures.domains_named = true;
    found.push_back({"set domain on every node", reached(Planner(named, schemes_).plan())});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Lever& a, const Lever& b) { return a.effective_time > b.effective_time; });
  return found;
}

}  // namespace ckpt::planner
