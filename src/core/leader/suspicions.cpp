#include "core/leader/suspicions.hpp"

#include <algorithm>
#include <utility>

#include "core/lists.hpp"

namespace ckpt::core {
namespace {

constexpr TimeMs settled_ms = 300;  // longer than agents take to notice the same

// The rank runs on that node in this incarnation. What a node says of earlier ones is over.
bool is_current(const JobView& view, NodeId node, const RankStanding& standing) {
  const auto bound = view.bindings.find(standing.rank);
  return standing.incarnation == view.record->incarnation && bound != view.bindings.end() && bound->second.node == node;
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
  if (!may_miss_nodes) return found;
  for (const auto& [rank, binding] : view.bindings) {
    if (!contains(view.missing, binding.node)) continue;
    const TimeMs silent_ms = now - binding.peer->received_at;
    found.push_back({binding.node,
                     {rank, view.record->incarnation, RankTrouble::unreachable, 0, binding.rank.attempted, std::nullopt,
                      silent_ms, 0}});
  }
  return found;
}

std::vector<ComputingTime> times(const JobView& view) {
  std::vector<ComputingTime> found;
  for (const auto& [rank, binding] : view.bindings) found.push_back({binding.node, rank, binding.rank.computing_ms});
  return found;
}

Suspicion suspect(const JobView& view, bool may_miss_nodes, TimeMs now) {
  if (!view.has_begun()) return {};
  Suspicion suspicion = find_culprits(ranks_in_trouble(view, may_miss_nodes, now), view.record->world_size);
  if (suspicion.culprits.empty())
    suspicion = find_stragglers(times(view), view.record->world_size, view.config.hang_factor);
  return suspicion;
}

bool is_certain(const Suspicion& suspicion) {
  return std::all_of(suspicion.culprits.begin(), suspicion.culprits.end(),
                     [](const Culprit& each) { return each.standing.trouble == RankTrouble::dead; });
}

}  // namespace

void Suspicions::reconcile(const JobView& view, bool may_miss_nodes, TimeMs now) {
  Suspicion found = suspect(view, may_miss_nodes, now);
  if (!found.says_the_same(next_)) since_ = now;
  next_ = std::move(found);
  if (is_certain(next_) || now - since_ >= settled_ms) current_ = next_;
}

}  // namespace ckpt::core
