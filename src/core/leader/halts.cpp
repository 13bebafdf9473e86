#include "core/leader/halts.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::core {
namespace {

// A former leader's halt, which some ranks already obey. Its iteration was decided once, and stays.
Halt reported_halt(const JobView& view) {
  Halt halt;
  for (const auto& [rank, binding] : view.bindings) {
    const RankReport& report = binding.rank;
    if (report.incarnation != view.record->incarnation || report.freeze.halt > view.epoch) continue;
    halt.number = std::max(halt.number, report.freeze.halt);
    if (report.freeze_at) halt.iteration = std::max(halt.iteration.value_or(-1), *report.freeze_at);
  }
  return halt;
}

bool is_culprit(const Halt& halt, Rank rank) {
  return std::any_of(halt.culprits.begin(), halt.culprits.end(),
                     [&](const Culprit& each) { return each.standing.rank == rank; });
}

// Its trainer is there, and its node answers.
bool is_here(const JobView& view, const Binding& binding, TimeMs now) {
  const auto& ranks = binding.peer->report.ranks;
  return view.is_present(*binding.peer, now) && std::any_of(ranks.begin(), ranks.end(), [&](const RankReport& each) {
           return each.rank == binding.rank.rank && each.instance == binding.rank.instance;
         });
}

// It may still be captured. A rank that waits in restore() has nothing, and takes part in the next incarnation.
bool is_running(const JobView& view, const Binding& binding, TimeMs now) {
  return binding.rank.incarnation == view.record->incarnation && !binding.rank.waiting && is_here(view, binding, now);
}

std::vector<HaltedRank> halted_ranks(const JobView& view, const Halt& halt, TimeMs now) {
  std::vector<HaltedRank> ranks;
  for (Rank rank = 0; rank < view.record->world_size; ++rank) {
    const auto bound = view.bindings.find(rank);
    if (bound == view.bindings.end()) {
      ranks.push_back({rank, no_node, {}, false});
      continue;
    }
    const Binding& binding = bound->second;
    // Nobody waits for a culprit before it is at rest. It may never finish its update, if that communicates.
    const bool is_busy_culprit = is_culprit(halt, rank) && binding.rank.freeze.freeze < Freeze::held;
    ranks.push_back({rank, binding.node, binding.rank.freeze, is_running(view, binding, now) && !is_busy_culprit});
  }
  return ranks;
}

// The first rank that says so.
const Binding* find_reporter(const JobView& view) {
  for (const auto& [rank, binding] : view.bindings) {
    if (binding.rank.reports_trouble && binding.rank.incarnation == view.record->incarnation) return &binding;
  }
  return nullptr;
}

}  // namespace

bool Halts::may_end(const JobView& view, bool has_listened, TimeMs now) const {
  if (!view.config.halts || !view.has_begun()) return true;
  if (current_.incarnation == view.record->incarnation && current_.is_over) return true;
  if (!view.missing.empty() && !has_listened) return false;
  return std::none_of(view.bindings.begin(), view.bindings.end(),
                      [&](const auto& entry) { return is_running(view, entry.second, now); });
}

void Halts::reconcile(const JobView& view, const Suspicion& suspicion, bool is_succeeded, bool has_listened,
                      TimeMs now) {
  if (current_.incarnation != view.record->incarnation) current_ = {};
  if (!view.has_begun() || !has_listened) return;
  if (current_.incarnation == 0) {
    Halt made = reported_halt(view);
    const Binding* reporter = find_reporter(view);
    const bool is_wanted = is_succeeded || reporter != nullptr || justifies_halt(suspicion);
    if (made.number == 0 && !(view.config.halts && is_wanted)) return;
    if (made.number == 0) made.number = view.epoch;
    made.incarnation = view.record->incarnation;
    if (reporter != nullptr) {
      made.reporter = reporter->rank.rank;
      made.reporter_node = reporter->node;
    }
    current_ = std::move(made);
    since_ = now;
  }
  if (current_.culprits.empty() && justifies_halt(suspicion)) current_.culprits = suspicion.culprits;
  const TimeMs lasted_ms = now - since_;
  const std::vector<HaltedRank> ranks = halted_ranks(view, current_, now);
  current_ =
      advance(std::move(current_), ranks, lasted_ms >= view.config.halt_decision_ms, lasted_ms >= view.config.halt_ms);
}

}  // namespace ckpt::core
