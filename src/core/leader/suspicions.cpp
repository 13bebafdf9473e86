#include "core/leader/suspicions.hpp"

#include <algorithm>
#include <utility>

#include "core/lists.hpp"

namespace ckpt::core {
namespace {

constexpr TimeMs settled_ms = 300;  // longer than agents take to notice the same

// The rank runs on that node in this incarnation. What a node says of earlier ones is over. The assignments say so, and
// not the reports of trainers: a new leader hears of no trainer that died before.
bool is_current(const JobView& view, NodeId node, const RankStanding& standing) {
  const auto& assignments = view.assignment_table.assignments();
  return standing.incarnation == view.record->incarnation && standing.rank < assignments.size() &&
         assignments[standing.rank].node == node;
}

Culprit unreachable(const JobView& view, Rank rank, NodeId node, TimeMs now) {
  const auto peer = view.peers.find(node);
  const auto bound = view.bindings.find(rank);
  RankStanding standing;
  standing.rank = rank;
  standing.incarnation = view.record->incarnation;
  standing.trouble = RankTrouble::unreachable;
  standing.iteration = bound == view.bindings.end() ? view.furthest_attempted() : bound->second.rank.attempted;
  standing.still_ms = now - (peer == view.peers.end() ? view.elected_at : peer->second.received_at);
  return {node, standing};
}

std::vector<Culprit> ranks_in_trouble(const JobView& view, bool may_miss_nodes, TimeMs now) {
  std::vector<Culprit> found;
  for (const Report* report : view.present) {
    const TimeMs age_ms = now - view.peers.at(report->node).received_at;
    for (RankStanding standing : report->in_trouble) {
      if (!is_current(view, report->node, standing)) continue;
      standing.still_ms += age_ms;
      found.push_back({report->node, standing});
    }
  }
  if (!may_miss_nodes || view.missing.empty()) return found;
  const auto& assignments = view.assignment_table.assignments();
  for (Rank rank = 0; rank < assignments.size(); ++rank) {
    const NodeId node = assignments[rank].node;
    if (contains(view.missing, node)) found.push_back(unreachable(view, rank, node, now));
  }
  return found;
}

std::vector<ComputingTime> times(const JobView& view) {
  std::vector<ComputingTime> found;
  for (const auto& [rank, binding] : view.bindings) found.push_back({binding.node, rank, binding.rank.computing_ms});
  return found;
}

Suspicion suspect(const JobView& view, bool may_miss_nodes, TimeMs now) {
  if (!view.has_begun() || view.assignment_table.name() != view.record->assignments) return {};
  Suspicion suspicion = find_culprits(ranks_in_trouble(view, may_miss_nodes, now), view.record->world_size);
  if (suspicion.culprits.empty())
    suspicion = find_stragglers(times(view), view.record->world_size, view.config.hang_factor);
  return suspicion;
}

bool is_certain(const Suspicion& suspicion) {
  return std::all_of(suspicion.culprits.begin(), suspicion.culprits.end(),
                     [](const Culprit& each) { return each.standing.trouble == RankTrouble::dead; });
}

bool accuses_of_waiting(const Suspicion& suspicion) {
  return !suspicion.culprits.empty() && !suspicion.is_everybody &&
         suspicion.culprits.front().standing.trouble == RankTrouble::waiting;
}

}  // namespace

void Suspicions::reconcile(const JobView& view, bool is_halted, bool may_miss_nodes, TimeMs gap_ms, TimeMs now) {
  Suspicion found = suspect(view, may_miss_nodes, now);
  // In a halted job, ranks also wait for those that the halt holds or has captured. So nobody else is named for that.
  if (is_halted && accuses_of_waiting(found)) found = accuses_of_waiting(current_) ? current_ : Suspicion();
  // A leader that did not look for a while has not seen the conclusion last.
  const TimeMs looked_ms = std::min(now - looked_at_, view.config.report_ms / 2 + gap_ms);
  lasted_ms_ = found.says_the_same(next_) ? lasted_ms_ + looked_ms : 0;
  looked_at_ = now;
  next_ = std::move(found);
  if (is_certain(next_) || lasted_ms_ >= settled_ms) current_ = next_;
}

}  // namespace ckpt::core
