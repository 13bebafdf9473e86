#include "core/leader/leader.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::core {

namespace {

constexpr TimeMs reconcile_gap_ms_max = 1000;

}  // namespace

// ---- What it hears ----

void Leader::on(const IncarnationRecordRead& read) {
  if (!record_writer_.accept(read)) return;
  const bool new_incarnation = view_.record && read.record.incarnation != view_.record->incarnation;
  assignments_.on_record(read.record);
  view_.record = read.record;
  if (new_incarnation) {
    admission_.on_new_incarnation();
    if (view_.places.is_arranged()) {
      last_places_ = std::exchange(view_.places, {});
      last_placed_ = view_.record->assignments;
    }
    all_waiting_since_.reset();
    commits_.on_new_incarnation();
    source_lost_at_.reset();
    unreadable_since_.reset();
    stranded_.clear();
    view_.alarm.clear();
    storage_.on_new_incarnation();
  }
  commits_.on_record();
}

void Leader::on(NodeId from, const Report& report, TimeMs now) {
  Peer& peer = view_.peers[report.node];
  const Report& known = peer.report;
  // One of the node's former agent may arrive late; a clock that was set back must not silence the next agent for ever.
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

// Whoever was not missed before the pause is not missed after it, until it has been silent for as long as ever. The
// roll is called again: those who answered it before may be gone. What was told to be waited for is waited for once
// more.
void Leader::on_pause(TimeMs before, TimeMs now) {
  for (auto& [node, peer] : view_.peers) {
    if (before - peer.received_at <= view_.config.node_timeout_ms) peer.received_at = now;
    if (before - peer.obeyed_at <= view_.config.node_timeout_ms) peer.obeyed_at = now;
  }
  losses_.on_pause(now);
  all_waiting_since_.reset();
  if (source_lost_at_) source_lost_at_ = now;
  if (unreadable_since_) unreadable_since_ = now;
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

// Who is here, through whom, and which members are not.
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

// ---- What it concludes ----

// A conclusion is drawn from all reports anew, which takes the longer the more they say. So where that is much it is
// drawn now and then, for all that came in between: the leader's work is bounded, however many reports there are.
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
  if (!in_charge() || !knows_assignments) return;
  if (!led_since_) {
    led_since_ = now;
    losses_.begin_to_listen(now);
  }
  // What is outlived is led until another incarnation is opened, if anybody knows who is in it.
  if (view_.has_begun() && view_.has_lost_assignments())

    return admission_.open_next(admission_.newest_world_size(), now, effects);
  if (admission_.follow_outlived(now, effects)) return;
  receive_roll_call(now);
  view_.inventory = take_inventory(view_.present);
  commits_.leave_out_outsiders();
  commits_.record_first_commit(now, effects);
  storage_.reconcile_listing(now, effects);
  admission_.reconcile(now, effects);
  commits_.abandon_disagreeing();
  reconcile_decision(now, effects);
  reconcile_placement(effects);
  reconcile_stranded(now, effects);
  commits_.reconcile(now, effects);
  losses_.release(assignments_.take_released());
  losses_.reconcile(directive_sequence_, reconcile_gap_ms(), now, effects);
  reconcile_storage(now, effects);
  decodable_.clear();
  for (const auto& [checkpoint, pieces] : view_.inventory) {
    if (checkpoint >= std::max(commits_.committed(), view_.record->decision.checkpoint))
      decodable_[checkpoint] = decodable(pieces);
  }
  reads_ = plan_reads(now);
  reconcile_health(now);
  send_directives(now, effects);
}

void Leader::reconcile_storage(TimeMs now, Effects& effects) {
  if (!view_.config.storage_writes || !view_.places.is_arranged()) return;
  const CheckpointId committed = commits_.newest_known();
  // Before a new leader has heard the nodes that are there, all of them seem to have lost their copies.
  const bool has_listing = view_.missing.empty() || losses_.has_listened_long(now);
  if (!committed || !has_listing) return;
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
    last_places_ = {};
    last_placed_ = {};
    if (!view_.places.notice().empty()) effects.push_back(Notice{view_.places.notice()});
  }
  view_.places.put_in_replacements(view_.record->replacements);
}

// Of the checkpoint to be restored: the shards that no node has, and that cannot be decoded.
std::set<std::string> Leader::lacking_in_memory() const {
  static const Pieces none;
  const auto found = view_.inventory.find(view_.record->decision.checkpoint);
  const Pieces& pieces = found == view_.inventory.end() ? none : found->second;
  const auto decoded = decodable(pieces);
  std::set<std::string> lacking;
  for (const auto& [shard, place] : view_.places.of(view_.record->decision.checkpoint)) {
    if (place.parity) continue;  // nobody restores from that
    if (!pieces.contains(shard) && !decoded.contains(shard)) lacking.insert(shard);
  }
  return lacking;
}

// The decision stands, but what it needs may be lost before every rank has it: then those who wait are told, after as
// long as the decision itself would have waited for a node. A checkpoint that proved damaged when it was read is passed
// over at once, in an incarnation of its own, as long as nobody has gone on from it.
void Leader::reconcile_stranded(TimeMs now, Effects& effects) {
  std::set<std::string> lacking;
  reading_storage_ = false;
  const bool waiting = std::any_of(view_.bindings.begin(), view_.bindings.end(),
                                   [](const auto& entry) { return entry.second.rank.waiting; });
  if (waiting && view_.record->decision.verdict == Verdict::restore) {
    // A new leader that has yet to hear every rank, or storage, does not know whether all of it is in memory.
    const auto stored = storage_.pieces_of(view_.record->decision.checkpoint);
    const bool knows =
        view_.is_complete_incarnation() && (!view_.config.storage || storage_.knows_all() || !stored.empty());
    lacking = lacking_in_memory();
    if (view_.config.storage && (!view_.is_complete_incarnation() || (!knows && !lacking.empty()))) {
      reading_storage_ = true;
      return;
    }
    reading_storage_ = std::erase_if(lacking, [&](const auto& shard) { return stored.contains(shard); }) != 0;
  }
  if (pass_over_step(!lacking.empty(), now, effects)) return;
  if (lacking.empty()) {
    source_lost_at_.reset();
    stranded_.clear();
    return;
  }
  if (!source_lost_at_) source_lost_at_ = now;
  if (now - *source_lost_at_ < view_.config.node_wait_ms) return;
  stranded_ = explain_stranded(view_.record->decision.checkpoint, lacking, view_.missing);
}

// What is read from storage proved damaged, or nobody can read it for so long that something older is better. True: the
// next incarnation decides anew.
bool Leader::pass_over_step(bool is_lacking, TimeMs now, Effects& effects) {
  const CheckpointId checkpoint = view_.record->decision.checkpoint;
  const bool is_damaged = is_lacking && storage_.is_unusable(checkpoint);
  const bool fails = reading_storage_ && storage_.has_read_trouble();
  if (!fails) unreadable_since_.reset();
  if (fails && !unreadable_since_) unreadable_since_ = now;
  const bool is_late = fails && now - *unreadable_since_ >= view_.config.storage_wait_ms;
  reading_storage_ = reading_storage_ || is_damaged;
  if (!(is_damaged || is_late) || !view_.is_complete_incarnation() || !view_.all_wait()) return false;
  if (!is_damaged) storage_.pass_over(checkpoint);
  IncarnationRecord next = *view_.record;
  ++next.incarnation;
  next.decision = {};
  record_writer_.swap(std::move(next), now, effects);
  return true;
}

}  // namespace ckpt::core
