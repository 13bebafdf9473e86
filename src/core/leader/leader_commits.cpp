// When a checkpoint counts as committed, or never will, and which commit goes to storage.
#include <algorithm>
#include <utility>

#include "core/leader/leader.hpp"
#include "core/lists.hpp"

namespace ckpt::core {

bool Leader::has(NodeId node, const std::string& shard, CheckpointId checkpoint) const {
  const auto pieces = inventory_.find(checkpoint);
  if (pieces == inventory_.end()) return false;
  const auto holders = pieces->second.find(shard);
  return holders != pieces->second.end() && is_held_by(holders->second, node);
}

bool Leader::is_complete(const Pieces& pieces, const Places& places) const {
  return std::all_of(places.begin(), places.end(), [&](const auto& entry) {
    const auto& [shard, place] = entry;
    const auto found = pieces.find(shard);
    if (found == pieces.end() || !agree(found->second)) return false;
    if (place.parity && !is_parity_of(*place.parity, *found->second.front().piece, pieces)) return false;
    return std::all_of(place.holders.begin(), place.holders.end(),
                       [&](NodeId node) { return is_held_by(found->second, node); });
  });
}

// Nodes may come back with what the incarnation went on without, and differ from what it restored: they were compared
// with nobody. So whoever took no part in it is left out where it contradicts a member or a replacement, and a
// replacement where it contradicts a member; and what none of these has is ordered from nobody while the others differ.
void Leader::reconcile_outsiders() {
  const auto restored = inventory_.find(record_->restored);
  if (restored == inventory_.end()) return;
  std::set<NodeId> others, outsiders;
  for (const Report* report : present_) {
    const bool has_any = std::any_of(report->pieces.begin(), report->pieces.end(),
                                     [&](const PieceInfo& piece) { return piece.checkpoint == restored->first; });
    if (!has_any || assignment_table_.is_member(report->node, report->arena_id)) continue;
    others.insert(report->node);
    if (!stands_in(*report)) outsiders.insert(report->node);
  }
  const auto notify = [&](const std::optional<Disagreement>& found) {
    if (found) alarm_ = explain(*found, restored->first);
  };
  if (!others.empty()) notify(leave_out_contradicting(restored->second, others));
  if (!outsiders.empty()) notify(leave_out_contradicting(restored->second, outsiders));
  if (has_begun()) notify(leave_out_disputed(restored->second));
}

// What ranks that name one shard captured differently. All of them were compared before it could be committed, so who
// is missing, and what of it an earlier leader has committed, changes nothing.
void Leader::reconcile_disagreements() {
  for (const auto& [checkpoint, pieces] : inventory_) {
    if (checkpoint.incarnation() != record_->incarnation || checkpoint <= committed_) continue;
    const auto disagreement = find_disagreement(pieces);
    if (!disagreement) continue;
    alarm_ = explain(*disagreement, checkpoint);
    add_once(abandoned_, checkpoint);
  }
}

// Its holders do not agree, or some rank has moved past the checkpoint without having it: it skipped it, discarded it,
// or never tried.
bool Leader::never_complete(CheckpointId checkpoint, const Pieces& pieces) const {
  if (!std::all_of(pieces.begin(), pieces.end(), [](const auto& entry) { return agree(entry.second); })) return true;
  for (const auto& [rank, binding] : bindings_) {
    const RankReport& report = binding.rank;
    if (report.attempted < checkpoint.iteration() || report.capturing == checkpoint.iteration()) continue;
    if (!has(binding.node, report.private_shard, checkpoint)) return true;
    const auto parts = parts_of(report.main_shard, *places_.share_of(rank));
    const auto has_part = [&, node = binding.node](const auto& part) { return has(node, part, checkpoint); };
    if (!std::all_of(parts.begin(), parts.end(), has_part)) return true;
  }
  return false;
}

// Nothing while a replacement has the place of a member: what it helps to commit, the member would not have, and after
// the next loss it would bear witness that nothing of the kind was committed.
void Leader::reconcile_commits(TimeMs now, Effects& effects) {
  if (!has_begun() || !is_complete_incarnation() || !record_->replacements.empty()) return;
  for (const auto& [rank, binding] : bindings_) {
    const Peer& peer = *binding.peer;
    if (!is_present(peer, now)) return;
    const CheckpointId known = peer.report.highest_commit;
    if (known.incarnation() == record_->incarnation) committed_ = std::max(committed_, known);
    resume_at_ = std::max(resume_at_, binding.rank.resume_at);  // as an earlier leader has named it
  }

  const CheckpointId restored = record_->decision.checkpoint;
  const auto its_pieces = inventory_.find(restored);
  // On record first: what was committed before goes with it, and the next incarnation must not look for that.
  if (may_swap_record(now) && restored > committed_ && its_pieces != inventory_.end() &&
      is_complete(its_pieces->second, places_.of(restored))) {
    IncarnationRecord record = *record_;
    record.base = restored;
    swap_record(std::move(record), now, effects);
  }

  for (auto it = inventory_.rbegin(); it != inventory_.rend(); ++it) {
    const auto& [checkpoint, pieces] = *it;
    if (checkpoint.incarnation() != record_->incarnation || checkpoint <= committed_) continue;
    if (!contains(abandoned_, checkpoint) && is_complete(pieces, places_.own())) {
      committed_ = own_commit_ = checkpoint;
      margin_ = 0;
      break;
    }
  }
  std::erase_if(abandoned_,
                [&](CheckpointId checkpoint) { return checkpoint <= committed_ || !inventory_.contains(checkpoint); });
  CheckpointId abandoned;
  for (const auto& [checkpoint, pieces] : inventory_) {
    if (checkpoint.incarnation() != record_->incarnation || checkpoint <= committed_) continue;
    if (!never_complete(checkpoint, pieces)) continue;
    add_once(abandoned_, checkpoint);
    abandoned = checkpoint;
  }
  // Once, however many are given up at a time, as by a new leader that hears the last member: nobody was told between.
  if (abandoned > newest_abandoned_) name_next_iteration(abandoned, now);
  reconcile_first_commit(now, effects);
}

// What anybody knows to be committed, by this leader, by one that was lost before it said so, or before the store's
// record was lost or set back: those who know may be lost next.
void Leader::reconcile_first_commit(TimeMs now, Effects& effects) {
  CheckpointId newest = committed_;
  for (const Report* report : present_) {
    const CheckpointId commit = report->highest_commit;
    if (commit.incarnation() <= record_->incarnation) newest = std::max(newest, commit);
  }
  if (!may_swap_record(now) || newest.incarnation() <= record_->first_commit.incarnation()) return;
  IncarnationRecord record = *record_;
  record.first_commit = newest;
  swap_record(std::move(record), now, effects);
}

// The iteration that all ranks take again. Ranks that are told too late take another one first and miss this one: from
// one that they missed to the next it lies further ahead, until a commit shows that they meet, or so much time has
// passed that whoever is here was told. What is given up before they come to the named one says nothing about it.
void Leader::name_next_iteration(CheckpointId abandoned, TimeMs now) {
  newest_abandoned_ = abandoned;
  if (abandoned.iteration() < resume_at_) return;
  if (now - named_at_ > config_.node_timeout_ms) margin_ = 0;
  named_at_ = now;
  std::int64_t furthest = abandoned.iteration();
  for (const auto& [rank, binding] : bindings_) furthest = std::max(furthest, binding.rank.attempted);
  resume_at_ = std::max(resume_at_, furthest + 1 + margin_);
  margin_ = std::min<std::int64_t>(std::max<std::int64_t>(1, 2 * margin_), 64);
}

std::uint32_t Leader::copies_now() const {
  const CheckpointId committed = newest_known_commit();
  const auto pieces = inventory_.find(committed);
  if (!committed || pieces == inventory_.end() || !places_.is_arranged()) return 0;
  std::size_t fewest = SIZE_MAX;
  for (const auto& [shard, place] : places_.of(committed)) {
    if (place.parity) continue;
    const auto holders = pieces->second.find(shard);
    fewest = std::min(fewest, holders == pieces->second.end() ? 0 : holders->second.size());
  }
  return static_cast<std::uint32_t>(fewest);
}

std::uint32_t Leader::parity_now() const {
  const CheckpointId committed = newest_known_commit();
  const auto pieces = inventory_.find(committed);
  if (!committed || pieces == inventory_.end() || !places_.is_arranged()) return 0;
  std::optional<std::uint32_t> fewest;
  for (const auto& [shard, place] : places_.of(committed)) {
    if (!place.parity || place.parity->member != 0) continue;  // once per group
    const std::uint32_t left = losses_left(*place.parity, pieces->second);
    fewest = std::min(fewest.value_or(left), left);
  }
  return fewest.value_or(0);
}

// Some piece of the checkpoint has fewer holders left than it was given.
bool Leader::is_short(CheckpointId checkpoint) const {
  const auto pieces = inventory_.find(checkpoint);
  if (pieces == inventory_.end()) return true;
  const Places& places = places_.of(checkpoint);
  return std::any_of(places.begin(), places.end(), [&](const auto& entry) {
    const auto& [shard, place] = entry;
    const auto holders = pieces->second.find(shard);
    return holders == pieces->second.end() || holders->second.size() < place.holders.size();
  });
}

// As far as those who are here have heard. A new leader does not announce it: there may be a newer one.
CheckpointId Leader::newest_known_commit() const {
  CheckpointId newest = committed_;
  for (const Report* report : present_) {
    if (report->highest_commit.incarnation() == record_->incarnation) newest = std::max(newest, report->highest_commit);
  }
  return newest;
}

void Leader::reconcile_storage(TimeMs now, Effects& effects) {
  if (!config_.storage_writes || !places_.is_arranged()) return;
  const CheckpointId committed = newest_known_commit();
  // Before a new leader has heard the nodes that are there, all of them seem to have lost their copies.
  const bool has_listing = missing_.empty() || has_listened_long(now);
  if (!committed || !has_listing) return;
  storage_.reconcile_writes({committed, record_->decision.checkpoint, is_short(committed), record_->world_size,
                             places_.of(record_->decision.checkpoint), places_.own(), inventory_},
                            now, effects);
}

}  // namespace ckpt::core
