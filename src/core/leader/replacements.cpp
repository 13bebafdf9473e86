#include "core/leader/replacements.hpp"

#include <algorithm>
#include <map>

namespace ckpt::core {

namespace {

// How many levels two failure domains share, from the outside in.
std::size_t shared_levels(const std::string& a, const std::string& b) {
  std::size_t levels = 0;
  for (std::size_t i = 0;; ++i) {
    const bool a_ends = i >= a.size() || a[i] == '/', b_ends = i >= b.size() || b[i] == '/';
    if (a_ends != b_ends || (!a_ends && a[i] != b[i])) return levels;
    if (!a_ends) continue;
    if (i != 0) ++levels;
    if (i >= a.size() || i >= b.size()) return levels;
  }
}

bool is_here(NodeId node, const std::vector<StandbyNode>& here) {
  return std::any_of(here.begin(), here.end(), [&](const StandbyNode& standby) { return standby.node.node == node; });
}

}  // namespace

std::vector<Replacement> choose_replacements(const std::vector<Replacement>& before,
                                             const std::vector<RankAssignment>& lost,
                                             const std::vector<StandbyNode>& here) {
  std::map<NodeId, const StandbyNode*> free;
  for (const StandbyNode& standby : here) free[standby.node.node] = &standby;
  std::map<NodeId, std::string> waiting;  // lost nodes, with their domains
  for (const RankAssignment& assignment : lost) waiting[assignment.node] = assignment.domain;

  std::vector<Replacement> chosen;
  for (const Replacement& known : before) {
    const auto standby = free.find(known.by.node);
    if (standby == free.end() || standby->second->node != known.by || waiting.erase(known.lost) == 0) continue;
    chosen.push_back(known);
    free.erase(standby);
  }
  std::vector<NodeId> replaced;
  for (const auto& [node, domain] : waiting) {
    if (free.empty()) break;
    const auto nearest = std::max_element(free.begin(), free.end(), [&domain = domain](const auto& a, const auto& b) {
      return shared_levels(a.second->domain, domain) < shared_levels(b.second->domain, domain);
    });
    chosen.push_back({node, nearest->second->node});
    free.erase(nearest);
    replaced.push_back(node);
  }
  for (const NodeId node : replaced) waiting.erase(node);
  for (const Replacement& known : before)
    if (waiting.contains(known.lost) && !is_here(known.by.node, here)) chosen.push_back(known);
  return chosen;
}

void put_in_replacements(Places& places, const std::vector<Replacement>& replacements) {
  std::map<NodeId, NodeId> by;
  for (const Replacement& each : replacements) by[each.lost] = each.by.node;
  const auto replace = [&](std::vector<NodeId>& nodes) {
    for (NodeId& node : nodes) {
      if (const auto found = by.find(node); found != by.end()) node = found->second;
    }
  };
  if (by.empty()) return;
  for (auto& [part, place] : places) {
    replace(place.owners);
    replace(place.holders);
  }
}

}  // namespace ckpt::core
