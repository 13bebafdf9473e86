#include "core/leader/leader.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::core {

namespace {

constexpr TimeMs reconcile_gap_ms_max = 1000;

}  // namespace

// ---- Reports ----

void Leader::on(const IncarnationRecordRead& read, bool is_in_store) {
  if (!record_writer_.accept(read, is_in_store)) return;
  const bool new_incarnation = view_.record && read.record.incarnation != view_.record->incarnation;
  assignments_.on_record(read.record);
  view_.record = read.record;
  if (new_incarnation) {
    admission_.on_new_incarnation();
    decision_.on_new_incarnation(std::exchange(view_.places, {}));
    commits_.on_new_incarnation();
    restore_progress_.on_new_incarnation();
    chain_from_.clear();
    lost_.clear();
    view_.alarm.clear();
    storage_.on_new_incarnation();
  }
  commits_.on_record();
}

void Leader::on(NodeId from, const Report& report, TimeMs now) {
  Peer& peer = view_.peers[report.node];
  const Report& known = peer.report;
  // A report of the node's previous agent may arrive late. But a clock that was set back must not silence the next
  // agent for ever.
  const bool is_silent = now - peer.received_at > view_.config.node_timeout_ms;
  const bool overtaken = report.agent_id == known.agent_id ? report.sequence <= known.sequence
                                                           : report.agent_id < known.agent_id && !is_silent;
  if (overtaken) return;
  losses_.on_report_of(report.node);
  pieces_received_ = pieces_received_ + report.pieces.size() - known.pieces.size();
  peer.report = report;
  peer.via = from;
  peer.received_at = now;
  answers_[report.node].is_due = true;
  storage_.on(report);
  if (report.epoch == view_.epoch && report.directive > peer.obeyed) {
    peer.obeyed = report.directive;
    peer.obeyed_at = now;
  }
}

// A node that was not missed before the pause is not missed after it, until it has been silent for the full time again.
// The leader calls the roll again, because nodes that answered may be gone. All waits start again. So does the time
// that nodes have to follow a new leader: it must renew its term before it speaks to them.
void Leader::on_pause(TimeMs before, TimeMs now) {
  for (auto& [node, peer] : view_.peers) {
    if (before - peer.received_at <= view_.config.node_timeout_ms) peer.received_at = now;
    if (before - peer.obeyed_at <= view_.config.node_timeout_ms) peer.obeyed_at = now;
  }
  losses_.on_pause(now);
  decision_.on_pause();
  restore_progress_.on_pause(now);
  if (led_since_ && before - *led_since_ <= 2 * view_.config.lease_ms) led_since_ = now;
}

void Leader::on_long_work(TimeMs work_ms) {
  for (auto& [node, peer] : view_.peers) {
    peer.received_at += work_ms;
    peer.obeyed_at += work_ms;
  }
}

bool Leader::is_obeyed(TimeMs now) const {
  return !led_since_ || now - *led_since_ <= 2 * view_.config.lease_ms ||
         losses_.is_followed(now, view_.config.node_timeout_ms);
}

std::vector<NodeId> Leader::nodes_present(TimeMs now) const {
  std::vector<NodeId> nodes;
  for (const auto& [node, peer] : view_.peers) {
    if (view_.is_present(peer, now)) nodes.push_back(node);
  }
  return nodes;
}

// Finds the nodes that are present, their relays, and the missing members.
void Leader::receive_roll_call(TimeMs now) {
  view_.present.clear();
  for (const auto& [node, peer] : view_.peers) {
    if (view_.is_present(peer, now)) view_.present.push_back(&peer.report);
  }
  view_.groups = view_.peers.size() < view_.config.relay_from
                     ? Groups()
                     : Groups(view_.peers.size(), view_.present, view_.config.node);
  view_.missing.clear();
  for (const Member& member : view_.assignment_table.members()) {
    const auto peer = view_.peers.find(member.node);
    if (peer == view_.peers.end() || !view_.is_present(peer->second, now)) view_.missing.push_back(member.node);
  }
}

// ---- Conclusions ----

// Conclusions are drawn from all reports again, which takes longer the more they contain. With many, the leader draws
// them only now and then, for all news since. So its work is bounded, however many reports come.
TimeMs Leader::reconcile_gap_ms() const {
  const auto gap_ms = static_cast<TimeMs>((view_.peers.size() + pieces_received_) / view_.config.pieces_per_ms);
  return std::min(gap_ms, reconcile_gap_ms_max);
}

std::optional<TimeMs> Leader::reconcile_wanted_at() const {
  return is_reconciled_ ? std::nullopt : std::optional(reconciled_at_ + reconcile_gap_ms());
}

void Leader::reconcile(TimeMs now, Effects& effects) {
  if (!view_.record) return;
  is_reconciled_ = now - reconciled_at_ >= reconcile_gap_ms();
  if (!is_reconciled_) return;
  reconciled_at_ = now;
  const bool knows_assignments = assignments_.reconcile(now, effects);
  if (!in_charge()) record_writer_.take_charge(now, effects);
  record_writer_.put_back(now, effects);
  if (!in_charge()) return;
  // The newer incarnation has removed the assignments of an outlived one, and nodes that know of it may be lost next.
  // So nothing is awaited. Until another incarnation is opened, this one is led if anybody knows its ranks.
  if (admission_.follow_outlived(now, effects) || !knows_assignments) return;
  if (!led_since_) {
    led_since_ = now;
    losses_.begin_to_listen(now);
  }
  if (view_.has_begun() && view_.has_lost_assignments())
    return admission_.open_next(admission_.newest_world_size(), now, effects);
  receive_roll_call(now);
  view_.inventory = take_inventory(view_.present);
  commits_.leave_out_outsiders();
  commits_.record_first_commit(now, effects);
  storage_.reconcile_listing(now, effects);
  admission_.reconcile(halts_, losses_.has_listened(now), now, effects);
  commits_.abandon_disagreeing();
  decision_.reconcile(now, effects);
  reconcile_placement(effects);
  restore_progress_.reconcile(now, effects);
  const Halt& halt = halts_.current();
  const bool is_halted = halt.incarnation == view_.record->incarnation;
  commits_.reconcile(is_halted ? halt.iteration : std::nullopt, now, effects);
  losses_.release(assignments_.take_released());
  losses_.reconcile(directive_sequence_, reconcile_gap_ms(), now, effects);
  reconcile_storage(now, effects);
  reconcile_decoding(now);
  reads_ = restore_progress_.plan_reads(commits_.committed(), now);
  reconcile_health(now);
  suspicions_.reconcile(view_, is_halted, losses_.has_listened(now), reconcile_gap_ms(), now);
  halts_.reconcile(view_, suspicions_.current(), admission_.is_held_back(), losses_.has_listened(now), now);
  send_directives(now, effects);
}

// Returns whether the checkpoint may be written to storage: only if as many ranks captured it as the job has now.
// Otherwise these ranks would write their own shards alone, and the checkpoint on storage would lack the others.
bool Leader::is_of_these_ranks(CheckpointId checkpoint) const {
  if (checkpoint.incarnation() == view_.record->assignments.incarnation) return true;
  const auto pieces = view_.inventory.find(checkpoint);
  return view_.record->restored_ranks == view_.record->world_size && pieces != view_.inventory.end() &&
         world_size_of(pieces->second) == view_.record->world_size;
}

void Leader::reconcile_storage(TimeMs now, Effects& effects) {
  if (!view_.config.storage_writes || !view_.places.is_arranged()) return;
  const CheckpointId committed = commits_.newest_known();
  // Until a new leader has heard the nodes that are present, all of them seem to have lost their copies.
  const bool has_listing = view_.missing.empty() || losses_.has_listened_long(now);
  if (!committed || !has_listing || !is_of_these_ranks(committed)) return;
  storage_.reconcile_writes(
      {committed, view_.record->decision.checkpoint, commits_.is_short(committed), view_.record->world_size,
       view_.places.of(view_.record->decision.checkpoint), view_.places.own(), view_.inventory},
      now, effects);
}

// ---- Placement ----

void Leader::reconcile_placement(Effects& effects) {
  if (!view_.has_begun()) return;
  if (!view_.places.is_arranged()) {
    view_.places = IncarnationPlacement(*view_.record, view_.assignment_table);
    decision_.on_placed();
    if (!view_.places.notice().empty()) effects.push_back(Notice{view_.places.notice()});
  }
  view_.places.put_in_replacements(view_.record->replacements);
}

}  // namespace ckpt::core
