#include "core/leader/restore_progress.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::core {

void RestoreProgress::on_new_incarnation() {
  source_lost_at_.reset();
  unreadable_since_.reset();
  stranded_.clear();
}

void RestoreProgress::on_pause(TimeMs now) {
  if (source_lost_at_) source_lost_at_ = now;
  if (unreadable_since_) unreadable_since_ = now;
}

// The shards of the checkpoint to restore that no node has and that nobody can decode.
std::set<std::string> RestoreProgress::lacking_in_memory() const {
  static const Pieces none;
  const auto found = view_.inventory.find(view_.record->decision.checkpoint);
  const Pieces& pieces = found == view_.inventory.end() ? none : found->second;
  const auto decoded = decodable(pieces);
  std::set<std::string> lacking;
  for (const auto& [shard, place] : view_.places.of(view_.record->decision.checkpoint)) {
    if (place.parity) continue;  // nobody restores from parity
    if (!pieces.contains(shard) && !decoded.contains(shard)) lacking.insert(shard);
  }
  return lacking;
}

// The decision stands, but its pieces may be lost before every rank has them. Then the waiting ranks learn of it, after
// as long as the decision itself would have waited for a node. A checkpoint that proved damaged when read is passed
// over at once, by a new incarnation, unless a rank has already gone on from it.
void RestoreProgress::reconcile(TimeMs now, Effects& effects) {
  std::set<std::string> lacking;
  reading_storage_ = false;
  const bool waiting = std::any_of(view_.bindings.begin(), view_.bindings.end(),
                                   [](const auto& entry) { return entry.second.rank.waiting; });
  if (waiting && view_.record->decision.verdict == Verdict::restore) {
    // A new leader that has not heard every rank, or storage, does not know yet whether all of it is in memory.
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
  if (pass_over_checkpoint(!lacking.empty(), now, effects)) return;
  if (lacking.empty()) {
    source_lost_at_.reset();
    stranded_.clear();
    return;
  }
  if (!source_lost_at_) source_lost_at_ = now;
  if (now - *source_lost_at_ < view_.config.node_wait_ms) return;
  stranded_ = explain_stranded(view_.record->decision.checkpoint, lacking, view_.missing);
}

// The checkpoint on storage proved damaged, or nobody could read it for so long that an older one is better. Returns
// true if the next incarnation decides again.
bool RestoreProgress::pass_over_checkpoint(bool is_lacking, TimeMs now, Effects& effects) {
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

// The first node that is present and has not failed to read.
NodeId RestoreProgress::reader_of(const Place& place, TimeMs now) const {
  for (const NodeId node : place.holders) {
    const auto peer = view_.peers.find(node);
    if (peer != view_.peers.end() && view_.is_present(peer->second, now) && !storage_.has_read_trouble(node))
      return node;
  }
  return place.holders.front();
}

std::map<NodeId, std::vector<FetchOrder>> RestoreProgress::plan_reads(CheckpointId committed, TimeMs now) const {
  std::map<NodeId, std::vector<FetchOrder>> reads;
  const CheckpointId checkpoint = view_.record->decision.checkpoint;
  if (!checkpoint || committed > checkpoint) return reads;
  const auto stored = storage_.pieces_of(checkpoint);
  if (stored.empty()) return reads;
  for (const std::string& shard : lacking_in_memory()) {
    const auto piece = stored.find(shard);
    if (piece == stored.end()) continue;
    reads[reader_of(view_.places.of(checkpoint).at(shard), now)].push_back({*piece->second, {storage_node}, {}});
  }
  return reads;
}

}  // namespace ckpt::core
