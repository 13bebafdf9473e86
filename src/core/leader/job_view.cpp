#include "core/leader/job_view.hpp"

#include <algorithm>

namespace ckpt::core {

bool JobView::is_present(const Peer& peer, TimeMs now) const {
  return peer.report.epoch == epoch && now - peer.received_at <= config.node_timeout_ms;
}

bool JobView::is_here(NodeId node, TimeMs now) const {
  const auto peer = peers.find(node);
  return peer != peers.end() && is_present(peer->second, now);
}

bool JobView::is_replacement(const Report& report) const {
  const Member node{report.node, report.arena_id};
  return std::any_of(record->replacements.begin(), record->replacements.end(),
                     [&](const Replacement& each) { return each.by == node; });
}

bool JobView::has(NodeId node, const std::string& shard, CheckpointId checkpoint) const {
  const auto pieces = inventory.find(checkpoint);
  if (pieces == inventory.end()) return false;
  const auto holders = pieces->second.find(shard);
  return holders != pieces->second.end() && is_held_by(holders->second, node);
}

bool JobView::all_wait() const {
  return std::all_of(bindings.begin(), bindings.end(), [](const auto& entry) { return entry.second.rank.waiting; });
}

std::int64_t JobView::furthest_attempted() const {
  std::int64_t furthest = -1;
  for (const auto& [rank, binding] : bindings) furthest = std::max(furthest, binding.rank.attempted);
  return furthest;
}

bool is_complete(const Pieces& pieces, const Places& places) {
  return std::all_of(places.begin(), places.end(), [&](const auto& entry) {
    const auto& [shard, place] = entry;
    const auto found = pieces.find(shard);
    if (found == pieces.end() || !agree(found->second)) return false;
    if (place.parity && !is_parity_of(*place.parity, *found->second.front().piece, pieces)) return false;
    return std::all_of(place.holders.begin(), place.holders.end(),
                       [&](NodeId node) { return is_held_by(found->second, node); });
  });
}

}  // namespace ckpt::core
