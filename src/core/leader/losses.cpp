#include "core/leader/losses.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::core {

void Losses::on_report_of(NodeId node) {
  if (node == predecessor_.node) predecessor_ = {};
}

void Losses::on_directive_of(NodeId other, TimeMs now) {
  if (other == predecessor_.node) predecessor_.silent_since = now;
}

NodeId Losses::take_predecessor_to_call() {
  return std::exchange(is_predecessor_called_, true) ? no_node : predecessor_.node;
}

void Losses::on_pause(TimeMs now) {
  begin_to_listen(now);
  predecessor_.silent_since = now;
}

void Losses::release(const std::vector<NodeId>& former_members) {
  released_.insert(released_.end(), former_members.begin(), former_members.end());
}

bool Losses::misses_only_its_predecessor(TimeMs now) const {
  return view_.missing == std::vector{predecessor_.node} &&
         std::all_of(view_.record->replacements.begin(), view_.record->replacements.end(),
                     [&](const Replacement& each) { return view_.is_here(each.by.node, now); });
}

// A leader that was just elected or stopped must first hear who is present. But its predecessor was already silent
// during the lease. If all others are present, this node only gives the predecessor the time to answer its call:
// perhaps the predecessor lives and merely could not write to the store.
bool Losses::has_listened(TimeMs now) const {
  const TimeMs listened_ms = now - listening_since_;
  if (has_listened_long(now)) return true;
  return listened_ms > 2 * view_.config.report_ms && now - predecessor_.silent_since > view_.config.node_timeout_ms &&
         misses_only_its_predecessor(now);
}

// A report may have been delayed. A node that obeys a directive has followed this leader since that directive was sent;
// nothing later is certain.
bool Losses::was_followed_since(TimeMs since, std::uint64_t newest_directive, TimeMs now) {
  if (sent_.empty() || now - sent_.back().at >= view_.config.report_ms / 4) sent_.push_back({now, newest_directive});
  while (sent_.size() > 1 && sent_.front().at < since) sent_.pop_front();
  return std::any_of(view_.peers.begin(), view_.peers.end(), [&](const auto& entry) {
    return entry.first != view_.config.node && entry.second.obeyed > sent_.front().sequence;
  });
}

// Whether only the lost nodes themselves can be the reason for their silence. A leader that no other node follows may
// itself be cut off, and is then replaced soon. Nodes turn to another leader one after the other. So it does not count
// if one of them still followed shortly after the first fell silent.
bool Losses::knows_who_is_lost(std::uint64_t newest_directive, TimeMs gap_ms, TimeMs now) {
  if (was_followed_since(now - view_.config.node_timeout_ms / 2 - gap_ms, newest_directive, now)) followed_at_ = now;
  return has_listened(now) && (followed_at_ == now || now - followed_at_ > 3 * view_.config.lease_ms);
}

void Losses::reconcile(std::uint64_t newest_directive, TimeMs gap_ms, TimeMs now, Effects& effects) {
  const bool knows = knows_who_is_lost(newest_directive, gap_ms, now);
  notify_released(knows, now, effects);
  if (!knows) return;
  const std::set<NodeId> lost = lost_members(now);
  notify_changes(lost, now, effects);
  if (!view_.has_begun()) return;
  auto wanted = choose_replacements(view_.record->replacements, assignments_of(lost), standbys());
  if (wanted == view_.record->replacements) return;
  IncarnationRecord record = *view_.record;
  record.replacements = std::move(wanted);
  record_writer_.swap(std::move(record), now, effects);
}

// Members without their memory, and members that are silent for too long. That time is long enough that no node would
// still follow this leader if it were cut off from all.
std::set<NodeId> Losses::lost_members(TimeMs now) const {
  std::set<NodeId> lost;
  for (const Member& member : view_.assignment_table.members()) {
    const auto peer = view_.peers.find(member.node);
    const bool was_heard = peer != view_.peers.end() && peer->second.report.epoch == view_.epoch &&
                           now - peer->second.received_at <= view_.config.node_timeout_ms + 2 * view_.config.report_ms;
    if (!was_heard || peer->second.report.arena_id != member.arena_id) lost.insert(member.node);
  }
  return lost;
}

// An absent node replaces nobody.
void Losses::notify_changes(const std::set<NodeId>& lost, TimeMs now, Effects& effects) {
  std::map<NodeId, NodeId> replacements;
  for (const Replacement& each : view_.record->replacements)
    if (view_.is_here(each.by.node, now)) replacements[each.lost] = each.by.node;
  for (const NodeId node : lost) {
    const auto found = replacements.find(node);
    const NodeId by = found == replacements.end() ? no_node : found->second;
    const auto [notified, is_news] = notified_lost_.try_emplace(node, no_node);
    const bool lost_its_replacement = by == no_node && notified->second != no_node;
    if (is_news || lost_its_replacement) effects.push_back(MemberChanged{Change::lost, node});
    if (by != notified->second && by != no_node) effects.push_back(MemberChanged{Change::replaced, node, by});
    notified->second = by;
  }
  std::erase_if(notified_lost_, [&](const auto& notified) {
    if (lost.contains(notified.first)) return false;
    effects.push_back(MemberChanged{Change::returned, notified.first});
    return true;
  });
}

// The job continued without them. Reports a node as lost first, in case nobody knew that yet.
void Losses::notify_released(bool knows_who_is_lost, TimeMs now, Effects& effects) {
  std::erase_if(released_, [&](NodeId node) {
    const auto peer = view_.peers.find(node);
    const bool answers = peer != view_.peers.end() && view_.is_present(peer->second, now);
    const bool is_lost = !answers && !notified_lost_.contains(node);
    if (is_lost && !knows_who_is_lost) return false;
    if (is_lost) effects.push_back(MemberChanged{Change::lost, node});
    effects.push_back(MemberChanged{Change::released, node});
    notified_lost_.erase(node);
    return true;
  });
}

std::vector<RankAssignment> Losses::assignments_of(const std::set<NodeId>& nodes) const {
  std::vector<RankAssignment> assignments;
  for (const RankAssignment& assignment : view_.assignment_table.assignments()) {
    if (nodes.contains(assignment.node)) assignments.push_back(assignment);
  }
  return assignments;
}

std::vector<StandbyNode> Losses::standbys() const {
  std::vector<StandbyNode> here;
  for (const Report* report : view_.present) {
    // A machine that came back without its memory may become its own replacement.
    if (report->standby && report->ranks.empty() && !view_.assignment_table.is_member(report->node, report->arena_id))
      here.push_back({{report->node, report->arena_id}, report->domain});
  }
  return here;
}

bool Losses::is_followed(TimeMs now, TimeMs within_ms) const {
  return std::any_of(view_.peers.begin(), view_.peers.end(), [&](const auto& entry) {
    const auto& [node, peer] = entry;
    return node != view_.config.node && peer.obeyed != 0 && now - peer.obeyed_at <= within_ms;
  });
}

}  // namespace ckpt::core
