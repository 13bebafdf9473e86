#include "core/leader/commits.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/invariant.hpp"
#include "core/lists.hpp"

namespace ckpt::core {

void Commits::on_new_incarnation() {
  abandoned_.clear();
  resume_at_ = 0;
  newest_abandoned_ = {};
  margin_ = 0;
  committed_ = {};
}

void Commits::on_record() {
  if (view_.record->decision.verdict == Verdict::restore) commit_to(std::max(committed_, view_.record->base));
}

// Pieces that older commits free cannot be had again.
void Commits::commit_to(CheckpointId checkpoint) {
  invariant(checkpoint >= committed_, "the leader took back a commit");
  invariant(!contains(abandoned_, checkpoint), "the leader committed a checkpoint that it had abandoned");
  committed_ = checkpoint;
}

// Nodes may come back with pieces that differ from what the incarnation restored, because nobody compared them. So
// leave out a node that took no part in the incarnation if it contradicts a member or a replacement. Leave out a
// replacement if it contradicts a member. If members and replacements have no piece, and the other nodes differ on it,
// order it from nobody.
void Commits::leave_out_outsiders() {
  const auto restored = inventory_.find(view_.record->restored);
  if (restored == inventory_.end()) return;
  std::set<NodeId> others, outsiders;
  for (const Report* report : view_.present) {
    const bool has_any = std::any_of(report->pieces.begin(), report->pieces.end(),
                                     [&](const PieceInfo& piece) { return piece.checkpoint == restored->first; });
    if (!has_any || view_.assignment_table.is_member(report->node, report->arena_id)) continue;
    others.insert(report->node);
    if (!view_.is_replacement(*report)) outsiders.insert(report->node);
  }
  const auto notify = [&](const std::optional<Disagreement>& found) {
    if (found) alarm_ = explain(*found, restored->first);
  };
  if (!others.empty()) notify(leave_out_contradicting(restored->second, others));
  if (!outsiders.empty()) notify(leave_out_contradicting(restored->second, outsiders));
  if (view_.has_begun()) notify(leave_out_disputed(restored->second));
}

// Abandons what ranks that name one shard captured differently. A commit needs all of them to be compared first. So
// missing ranks, and commits of an earlier leader, change nothing here.
void Commits::abandon_disagreeing() {
  for (const auto& [checkpoint, pieces] : view_.inventory) {
    if (checkpoint.incarnation() != view_.record->incarnation || checkpoint <= committed_) continue;
    const auto disagreement = find_disagreement(pieces);
    if (!disagreement) continue;
    alarm_ = explain(*disagreement, checkpoint);
    add_once(abandoned_, checkpoint);
  }
}

// Its holders disagree, or some rank has moved past the checkpoint without having it: it skipped it, discarded it, or
// never tried.
bool Commits::never_complete(CheckpointId checkpoint, const Pieces& pieces) const {
  if (!std::all_of(pieces.begin(), pieces.end(), [](const auto& entry) { return agree(entry.second); })) return true;
  for (const auto& [rank, binding] : view_.bindings) {
    const RankReport& report = binding.rank;
    if (report.attempted < checkpoint.iteration() || report.capturing == checkpoint.iteration()) continue;
    if (!view_.has(binding.node, report.private_shard, checkpoint)) return true;
    const auto parts = parts_of(report.main_shard, *view_.places.share_of(rank));
    const auto has_part = [&, node = binding.node](const auto& part) { return view_.has(node, part, checkpoint); };
    if (!std::all_of(parts.begin(), parts.end(), has_part)) return true;
  }
  return false;
}

// Commits nothing while a replacement has a member's place. The member would not have such a commit. After the next
// loss it would wrongly prove that nothing newer was committed.
void Commits::reconcile(std::optional<std::int64_t> frozen_at, TimeMs now, Effects& effects) {
  if (!view_.has_begun() || !view_.is_complete_incarnation() || !view_.record->replacements.empty()) return;
  for (const auto& [rank, binding] : view_.bindings) {
    const Peer& peer = *binding.peer;
    if (!view_.is_present(peer, now)) return;
    const CheckpointId known = peer.report.highest_commit;
    if (known.incarnation() == view_.record->incarnation) committed_ = std::max(committed_, known);
    resume_at_ = std::max(resume_at_, binding.rank.resume_at);  // as an earlier leader named it
  }

  const CheckpointId restored = view_.record->decision.checkpoint;
  const auto its_pieces = view_.inventory.find(restored);
  // Write the record first. The commit frees all older ones, and the next incarnation must not look for those.
  if (record_writer_.may_swap(now) && restored > committed_ && its_pieces != view_.inventory.end() &&
      is_complete(its_pieces->second, view_.places.of(restored))) {
    IncarnationRecord record = *view_.record;
    record.base = restored;
    record_writer_.swap(std::move(record), now, effects);
  }

  for (auto it = view_.inventory.rbegin(); it != view_.inventory.rend(); ++it) {
    const auto& [checkpoint, pieces] = *it;
    if (checkpoint.incarnation() != view_.record->incarnation || checkpoint <= committed_) continue;
    if (!contains(abandoned_, checkpoint) && is_complete(pieces, view_.places.own())) {
      commit_to(checkpoint);
      own_commit_ = checkpoint;
      margin_ = 0;
      break;
    }
  }
  std::erase_if(abandoned_, [&](CheckpointId checkpoint) {
    return checkpoint <= committed_ || !view_.inventory.contains(checkpoint);
  });
  CheckpointId abandoned;
  for (const auto& [checkpoint, pieces] : view_.inventory) {
    if (checkpoint.incarnation() != view_.record->incarnation || checkpoint <= committed_) continue;
    if (checkpoint.iteration() == frozen_at || !never_complete(checkpoint, pieces)) continue;
    add_once(abandoned_, checkpoint);
    abandoned = checkpoint;
  }
  // Counts once, however many are abandoned at a time, as by a new leader that hears the last member: nobody learned of
  // it in between.
  if (abandoned > newest_abandoned_) name_next_iteration(abandoned, now);
  record_first_commit(now, effects);
}

// Records a commit that anybody knows of: made by this leader, by one that was lost before it announced it, or before
// the store's record was lost or set back. The nodes that know may be lost next.
void Commits::record_first_commit(TimeMs now, Effects& effects) {
  CheckpointId newest = committed_;
  for (const Report* report : view_.present) {
    const CheckpointId commit = report->highest_commit;
    if (commit.incarnation() <= view_.record->incarnation) newest = std::max(newest, commit);
  }
  if (!record_writer_.may_swap(now) || newest.incarnation() <= view_.record->first_commit.incarnation()) return;
  IncarnationRecord record = *view_.record;
  record.first_commit = newest;
  record_writer_.swap(std::move(record), now, effects);
}

// Names the iteration that all ranks take again. A rank misses it if it learns of it too late, or if it still copies an
// iteration that it took before it learned. So from one miss to the next, the named iteration lies further ahead, until
// a commit shows that the ranks meet. Once all present ranks have had the time to learn of it, only copying can be the
// reason, and a few iterations are enough for that. Iterations abandoned before the named one say nothing about it.
void Commits::name_next_iteration(CheckpointId abandoned, TimeMs now) {
  constexpr std::int64_t enough_to_copy = 4, enough_to_learn = 64;
  newest_abandoned_ = abandoned;
  if (abandoned.iteration() < resume_at_) return;
  if (now - named_at_ > view_.config.node_timeout_ms) margin_ = std::min(margin_, enough_to_copy);
  named_at_ = now;
  std::int64_t furthest = abandoned.iteration();
  for (const auto& [rank, binding] : view_.bindings) furthest = std::max(furthest, binding.rank.attempted);
  resume_at_ = std::max(resume_at_, furthest + 1 + margin_);
  margin_ = std::min(std::max<std::int64_t>(1, 2 * margin_), enough_to_learn);
}

std::uint32_t Commits::copies_now() const {
  const CheckpointId committed = newest_known();
  const auto pieces = view_.inventory.find(committed);
  if (!committed || pieces == view_.inventory.end() || !view_.places.is_arranged()) return 0;
  std::size_t fewest = SIZE_MAX;
  for (const auto& [shard, place] : view_.places.of(committed)) {
    if (place.parity) continue;
    const auto holders = pieces->second.find(shard);
    fewest = std::min(fewest, holders == pieces->second.end() ? 0 : holders->second.size());
  }
  return static_cast<std::uint32_t>(fewest);
}

std::uint32_t Commits::parity_now() const {
  const CheckpointId committed = newest_known();
  const auto pieces = view_.inventory.find(committed);
  if (!committed || pieces == view_.inventory.end() || !view_.places.is_arranged()) return 0;
  std::optional<std::uint32_t> fewest;
  for (const auto& [shard, place] : view_.places.of(committed)) {
    if (!place.parity || place.parity->member != 0) continue;  // once per group
    const std::uint32_t left = losses_left(*place.parity, pieces->second);
    fewest = std::min(fewest.value_or(left), left);
  }
  return fewest.value_or(0);
}

bool Commits::is_short(CheckpointId checkpoint) const {
  const auto pieces = view_.inventory.find(checkpoint);
  if (pieces == view_.inventory.end()) return true;
  const Places& places = view_.places.of(checkpoint);
  return std::any_of(places.begin(), places.end(), [&](const auto& entry) {
    const auto& [shard, place] = entry;
    const auto holders = pieces->second.find(shard);
    return holders == pieces->second.end() || holders->second.size() < place.holders.size();
  });
}

CheckpointId Commits::newest_known() const {
  CheckpointId newest = committed_;
  for (const Report* report : view_.present) {
    if (report->highest_commit.incarnation() == view_.record->incarnation)
      newest = std::max(newest, report->highest_commit);
  }
  return newest;
}

}  // namespace ckpt::core
