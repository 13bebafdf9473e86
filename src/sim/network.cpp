#include "sim/network.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace ckpt::sim {

Network::Network(EventQueue& event_queue, Random random, unsigned loss_per_mille, Deliver deliver)
    : event_queue_(event_queue), random_(random), loss_per_mille_(loss_per_mille), deliver_(std::move(deliver)) {}

void Network::send(NodeId from, NodeId to, core::Message message) {
  if (!open(from, to) || random_.chance(loss_per_mille_ + conditions_.loss)) return;
  const auto shared = std::make_shared<const core::Message>(std::move(message));
  deliver_after(draw_delay(), from, to, shared);
  if (random_.chance(conditions_.repeats)) deliver_after(draw_delay(), from, to, shared);
}

// Draws a delay of a few milliseconds. One message in two hundred is delayed for so long that it arrives in a later
// epoch or incarnation.
TimeMs Network::draw_delay() {
  if (conditions_.delay_ms_max > 0) return random_.between(1, conditions_.delay_ms_max);
  return random_.chance(5) ? random_.between(100, delay_ms_max) : random_.between(1, 6);
}

void Network::deliver_after(TimeMs delay_ms, NodeId from, NodeId to, std::shared_ptr<const core::Message> message) {
  event_queue_.after(delay_ms, [this, from, to, message = std::move(message), era = era_] {
    if (era == era_ && open(from, to)) deliver_(from, to, *message);
  });
}

bool Network::open(NodeId from, NodeId to) const {
  for (const auto& [handle, cut] : cuts_) {
    const bool from_inside = cut.inside.contains(from);
    const bool to_inside = cut.inside.contains(to);
    if (from_inside != to_inside && (from_inside || !cut.one_way)) return false;
  }
  return true;
}

bool Network::separates(const Cut& cut, NodeId one, NodeId other) {
  return cut.inside.contains(one) != cut.inside.contains(other);
}

TimeMs Network::open_both_ways_since(NodeId one, NodeId other) const {
  if (!open_both_ways(one, other)) return std::numeric_limits<TimeMs>::max();
  TimeMs since = 0;
  for (const auto& [cut, mended_at] : mended_)
    if (separates(cut, one, other)) since = std::max(since, mended_at);
  return since;
}

void Network::set_conditions(const NetworkConditions& conditions) {
  conditions_ = conditions;
  const bool is_fair = conditions.loss == 0 && conditions.delay_ms_max == 0;
  fair_since_ = is_fair ? event_queue_.now() : std::numeric_limits<TimeMs>::max();
}

int Network::cut(std::set<NodeId> inside, bool one_way) {
  cuts_[next_cut_] = {std::move(inside), one_way};
  return next_cut_++;
}

void Network::mend(int cut) {
  const auto found = cuts_.find(cut);
  mended_.emplace_back(std::move(found->second), event_queue_.now());
  cuts_.erase(found);
}

}  // namespace ckpt::sim
