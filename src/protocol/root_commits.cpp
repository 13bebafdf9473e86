// When a version counts as committed, or never will, and which commit goes to storage.
#include <algorithm>
#include <utility>

#include "protocol/lists.hpp"
#include "protocol/root.hpp"

namespace ckpt::protocol {

bool Root::has(NodeId node, const std::string& shard, Version version) const {
  const auto pieces = inventory_.find(version);
  if (pieces == inventory_.end()) return false;
  const auto holders = pieces->second.find(shard);
  return holders != pieces->second.end() && is_held_by(holders->second, node);
}

bool Root::is_complete(const Pieces& pieces, const Places& places) const {
  return std::all_of(places.begin(), places.end(), [&](const auto& entry) {
    const auto& [shard, place] = entry;
    const auto found = pieces.find(shard);
    if (found == pieces.end() || !agree(found->second)) return false;
    if (place.parity && !is_parity_of(*place.parity, *found->second.front().piece, pieces)) return false;
    return std::all_of(place.holders.begin(), place.holders.end(),
                       [&](NodeId node) { return is_held_by(found->second, node); });
  });
}

// Nodes may come back with what the life went on without, and differ from what it restored: they were compared with
// nobody. So whoever took no part in it is left out where it contradicts a member or a stand-in, and a stand-in where
// it contradicts a member; and what none of these has is ordered from nobody while the others differ.
void Root::settle_outsiders() {
  const auto restored = inventory_.find(life_->restored);
  if (restored == inventory_.end()) return;
  std::set<NodeId> others, outsiders;
  for (const Report* report : present_) {
    const bool has_any = std::any_of(report->pieces.begin(), report->pieces.end(),
                                     [&](const PieceInfo& piece) { return piece.version == restored->first; });
    if (!has_any || seating_.is_member(report->node, report->arena_id)) continue;
    others.insert(report->node);
    if (!stands_in(*report)) outsiders.insert(report->node);
  }
  const auto tell = [&](const std::optional<Disagreement>& found) {
    if (found) alarm_ = explain(*found, restored->first);
  };
  if (!others.empty()) tell(leave_out_contradicting(restored->second, others));
  if (!outsiders.empty()) tell(leave_out_contradicting(restored->second, outsiders));
  if (has_begun()) tell(leave_out_disputed(restored->second));
}

// What ranks that name one shard captured differently. All of them were compared before it could be committed, so who
// is missing, and what of it an earlier root has committed, changes nothing.
void Root::settle_disagreements() {
  for (const auto& [version, pieces] : inventory_) {
    if (version.incarnation() != life_->incarnation || version <= committed_) continue;
    const auto disagreement = find_disagreement(pieces);
    if (!disagreement) continue;
    alarm_ = explain(*disagreement, version);
    add_once(abandoned_, version);
  }
}

// Its holders do not agree, or some rank has moved past the version without having it: it skipped it, discarded it, or
// never tried.
bool Root::never_complete(Version version, const Pieces& pieces) const {
  if (!std::all_of(pieces.begin(), pieces.end(), [](const auto& entry) { return agree(entry.second); })) return true;
  for (const auto& [rank, binding] : bindings_) {
    const RankReport& report = binding.rank;
    if (report.attempted < version.iteration() || report.capturing == version.iteration()) continue;
    if (!has(binding.node, report.private_shard, version)) return true;
    const auto parts = parts_of(report.main_shard, *places_.share_of(rank));
    const auto has_part = [&, node = binding.node](const auto& part) { return has(node, part, version); };
    if (!std::all_of(parts.begin(), parts.end(), has_part)) return true;
  }
  return false;
}

// Nothing while a stand-in has the place of a member: what it helps to commit, the member would not have, and after the
// next loss it would bear witness that nothing of the kind was committed.
void Root::settle_commits(TimeMs now, Effects& effects) {
  if (!has_begun() || !complete_life() || !life_->stand_ins.empty()) return;
  for (const auto& [rank, binding] : bindings_) {
    const Peer& peer = *binding.peer;
    if (!is_present(peer, now)) return;
    const Version known = peer.report.highest_commit;
    if (known.incarnation() == life_->incarnation) committed_ = std::max(committed_, known);
    resume_at_ = std::max(resume_at_, binding.rank.resume_at);  // as an earlier root has named it
  }

  const Version restored = life_->decision.version;
  const auto its_pieces = inventory_.find(restored);
  // On record first: what was committed before goes with it, and the next life must not look for that.
  if (may_swap_life(now) && restored > committed_ && its_pieces != inventory_.end() &&
      is_complete(its_pieces->second, places_.of(restored))) {
    LifeRecord record = *life_;
    record.base = restored;
    swap_life(std::move(record), now, effects);
  }

  for (auto it = inventory_.rbegin(); it != inventory_.rend(); ++it) {
    const auto& [version, pieces] = *it;
    if (version.incarnation() != life_->incarnation || version <= committed_) continue;
    if (!contains(abandoned_, version) && is_complete(pieces, places_.own())) {
      committed_ = own_commit_ = version;
      margin_ = 0;
      break;
    }
  }
  std::erase_if(abandoned_, [&](Version version) { return version <= committed_ || !inventory_.contains(version); });
  Version abandoned;
  for (const auto& [version, pieces] : inventory_) {
    if (version.incarnation() != life_->incarnation || version <= committed_) continue;
    if (!never_complete(version, pieces)) continue;
    add_once(abandoned_, version);
    abandoned = version;
  }
  // Once, however many are given up at a time, as by a new leader that hears the last member: nobody was told between.
  if (abandoned > newest_abandoned_) name_next_iteration(abandoned, now);
  settle_first_commit(now, effects);
}

// What anybody knows to be committed, by this root, by one that was lost before it said so, or before the store's
// record was lost or set back: those who know may be lost next.
void Root::settle_first_commit(TimeMs now, Effects& effects) {
  Version newest = committed_;
  for (const Report* report : present_) {
    const Version commit = report->highest_commit;
    if (commit.incarnation() <= life_->incarnation) newest = std::max(newest, commit);
  }
  if (!may_swap_life(now) || newest.incarnation() <= life_->first_commit.incarnation()) return;
  LifeRecord record = *life_;
  record.first_commit = newest;
  swap_life(std::move(record), now, effects);
}

// The iteration that all ranks take again. Ranks that are told too late take another one first and miss this one: from
// one that they missed to the next it lies further ahead, until a commit shows that they meet, or so much time has
// passed that whoever is here was told. What is given up before they come to the named one says nothing about it.
void Root::name_next_iteration(Version abandoned, TimeMs now) {
  newest_abandoned_ = abandoned;
  if (abandoned.iteration() < resume_at_) return;
  if (now - named_at_ > config_.node_timeout_ms) margin_ = 0;
  named_at_ = now;
  std::int64_t furthest = abandoned.iteration();
  for (const auto& [rank, binding] : bindings_) furthest = std::max(furthest, binding.rank.attempted);
  resume_at_ = std::max(resume_at_, furthest + 1 + margin_);
  margin_ = std::min<std::int64_t>(std::max<std::int64_t>(1, 2 * margin_), 64);
}

std::uint32_t Root::copies_now() const {
  const Version committed = newest_known_commit();
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

std::uint32_t Root::parity_now() const {
  const Version committed = newest_known_commit();
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

// Some piece of the version has fewer holders left than it was given.
bool Root::is_short(Version version) const {
  const auto pieces = inventory_.find(version);
  if (pieces == inventory_.end()) return true;
  const Places& places = places_.of(version);
  return std::any_of(places.begin(), places.end(), [&](const auto& entry) {
    const auto& [shard, place] = entry;
    const auto holders = pieces->second.find(shard);
    return holders == pieces->second.end() || holders->second.size() < place.holders.size();
  });
}

// As far as those who are here have heard. A new root does not announce it: there may be a newer one.
Version Root::newest_known_commit() const {
  Version newest = committed_;
  for (const Report* report : present_) {
    if (report->highest_commit.incarnation() == life_->incarnation) newest = std::max(newest, report->highest_commit);
  }
  return newest;
}

void Root::settle_storage(TimeMs now, Effects& effects) {
  if (!config_.storage_writes || !places_.is_arranged()) return;
  const Version committed = newest_known_commit();
  // Before a new root has heard the nodes that are there, all of them seem to have lost their copies.
  const bool has_heard = missing_.empty() || has_listened_long(now);
  if (!committed || !has_heard) return;
  storing_.settle_writes({committed, life_->decision.version, is_short(committed), life_->world_size,
                          places_.of(life_->decision.version), places_.own(), inventory_},
                         now, effects);
}

}  // namespace ckpt::protocol
