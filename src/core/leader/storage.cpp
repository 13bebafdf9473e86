#include "core/leader/storage.hpp"

#include <algorithm>
#include <utility>

#include "core/lists.hpp"

namespace ckpt::core {

namespace {

constexpr TimeMs retry_ms = 2000;

// Prefers a node that captured it, because that node has one more slot for this.
NodeId writer_of(const Place& place, const Holders& holders) {
  for (const NodeId preferred : place.capturers) {
    if (is_held_by(holders, preferred)) return preferred;
  }
  return holders.front().node;
}

}  // namespace

// ---- Content ----

void JobStorage::on(const StorageListed& listed, TimeMs now) {
  listing_ = false;
  newest_incarnation_ = std::max(newest_incarnation_, listed.newest_incarnation);
  for (const PieceInfo& piece : listed.pieces) {
    stored_ = std::max(stored_, piece.checkpoint);
    newest_incarnation_ = std::max(newest_incarnation_, piece.checkpoint.incarnation());
  }
  if (std::exchange(listing_is_stale_, false)) return;
  if (!listed.trouble.empty()) list_again_at_ = now + retry_ms;
  take(listed);
}

// A piece that an incomplete answer leaves out may exist all the same.
void JobStorage::take(const StorageListed& listed) {
  const auto before = std::exchange(known_listing_, listed);
  if (listed.trouble.empty() || !before) return;
  std::set<std::pair<CheckpointId, std::string>> listed_now;
  for (const PieceInfo& piece : listed.pieces) listed_now.emplace(piece.checkpoint, piece.shard);
  for (const PieceInfo& piece : before->pieces) {
    if (!listed_now.contains({piece.checkpoint, piece.shard})) known_listing_->pieces.push_back(piece);
  }
  for (const std::string& step : before->unusable) add_once(known_listing_->unusable, step);
}

void JobStorage::on_new_incarnation() {
  known_listing_.reset();
  listing_is_stale_ = listing_;
  read_troubles_.clear();
  passed_over_ = std::exchange(passed_over_next_, std::nullopt);
  if (writing_ && !writing_->is_committing) writing_.reset();
  if (writing_) writing_->is_of_older_incarnation = true;
}

std::set<CheckpointId> JobStorage::unusable() const {
  std::set<CheckpointId> checkpoints = damaged_;
  if (passed_over_) checkpoints.insert(*passed_over_);
  return checkpoints;
}

bool JobStorage::has_read_trouble() const {
  return std::any_of(read_troubles_.begin(), read_troubles_.end(),
                     [](const auto& entry) { return !entry.second.empty(); });
}

bool JobStorage::has_read_trouble(NodeId node) const {
  const auto found = read_troubles_.find(node);
  return found != read_troubles_.end() && !found->second.empty();
}

void JobStorage::reconcile_listing(TimeMs now, Effects& effects) {
  if (!config_.storage || knows_all() || is_finishing() || listing_ || now < list_again_at_) return;
  listing_ = true;
  effects.push_back(ListStorage{});
}

std::map<std::string, const PieceInfo*> JobStorage::pieces_of(CheckpointId checkpoint) const {
  std::map<std::string, const PieceInfo*> pieces;
  if (!known_listing_ || is_unusable(checkpoint)) return pieces;
  for (const PieceInfo& piece : known_listing_->pieces) {
    if (piece.checkpoint == checkpoint) pieces[piece.shard] = &piece;
  }
  return pieces;
}

std::string JobStorage::why_unknown(const std::vector<const Report*>& present) const {
  if (config_.storage && !has_listing()) return "it has not answered yet";
  if (config_.storage && is_finishing()) return "a checkpoint of the previous incarnation is still being completed";
  if (config_.storage) return known_listing().trouble;
  for (const Report* report : present) {
    if (report->storage) {
      return "node " + std::to_string(config_.node) + " (the leader) has no option storage, but node " +
             std::to_string(report->node) + " has one; give all agents of the job the same option storage";
    }
  }
  return "";
}

// ---- Writing ----

void JobStorage::on(const Report& report) {
  reported_[report.node] = report.written;
  read_troubles_[report.node] = report.read_trouble;
  damaged_.insert(report.damaged.begin(), report.damaged.end());
}

void JobStorage::on(const FinalizeEnded& ended, TimeMs now) {
  if (!writing_ || ended.checkpoint != writing_->checkpoint) return;
  if (writing_->is_of_older_incarnation) {  // this incarnation's listing is older than it
    known_listing_.reset();
    listing_is_stale_ = listing_;
  }
  if (!ended.trouble.empty()) return fail(ended.trouble, now);
  stored_ = std::max(stored_, ended.checkpoint);
  stored_at_ = now;
  write_trouble_.clear();
  writing_.reset();
}

void JobStorage::fail(const std::string& trouble, TimeMs now) {
  write_trouble_ = trouble;
  write_again_at_ = now + retry_ms;
  writing_.reset();
}

// How many multiples of storage_every lie between the stored checkpoint and the newest commit. After a fresh start the
// count includes 0, so the first commit goes to storage.
std::int64_t JobStorage::periods_passed(const CommitState& state) const {
  if (config_.storage_every == 0) return 0;
  // Checkpoints that older incarnations stored beyond it do not belong to this incarnation.
  const bool is_own = stored_.incarnation() == state.committed.incarnation();
  const CheckpointId base = is_own ? stored_ : state.began_from;
  const std::int64_t passed_before = base ? base.iteration() / config_.storage_every : -1;
  return state.committed.iteration() / config_.storage_every - passed_before;
}

bool JobStorage::is_due(const CommitState& state, TimeMs now) const {
  // Files of a newer incarnation there do not count as this one's.
  if (state.committed <= stored_ && stored_.incarnation() <= state.committed.incarnation()) return false;
  const bool is_time = config_.storage_interval_ms != 0 && now - stored_at_ >= config_.storage_interval_ms;
  return state.is_short || is_time || periods_passed(state) > 0;
}

void JobStorage::begin(const CommitState& state) {
  writing_ = Writing{state.committed, ++attempts_, state.world_size, {}, {}, {}, false, false};
  if (assign(state)) {
    skipped_ += static_cast<std::uint64_t>(std::max<std::int64_t>(periods_passed(state) - 1, 0));
  } else {
    writing_.reset();
  }
}

// Every unwritten piece needs a node that has it. Returns false if no node has one of them any more.
bool JobStorage::assign(const CommitState& state) {
  const auto pieces = state.inventory.find(writing_->checkpoint);
  if (pieces == state.inventory.end()) return false;
  for (const auto& [shard, place] : writing_->checkpoint == state.began_from ? state.restored_places : state.places) {
    if (place.parity || writing_->written.contains(shard)) continue;
    const auto found = pieces->second.find(shard);
    if (found == pieces->second.end()) return false;
    const auto writer = writing_->writers.find(shard);
    if (writer != writing_->writers.end() && is_held_by(found->second, writer->second)) continue;
    writing_->writers[shard] = writer_of(place, found->second);
  }
  writing_->by_writer.clear();
  for (const auto& [shard, writer] : writing_->writers) writing_->by_writer[writer].push_back(shard);
  return true;
}

void JobStorage::reconcile_writes(const CommitState& state, TimeMs now, Effects& effects) {
  if (!config_.storage_writes || !known_listing_) return;
  if (!writing_ && now >= write_again_at_ && is_due(state, now)) begin(state);
  if (!writing_ || writing_->is_committing) return;
  for (const auto& [node, written] : reported_) {
    if (written.checkpoint != writing_->checkpoint || written.attempt != writing_->attempt) continue;
    if (!written.trouble.empty()) return fail(written.trouble, now);
    writing_->written.insert(written.shards.begin(), written.shards.end());
  }
  if (writing_->written.size() < writing_->writers.size()) {
    if (!assign(state)) writing_.reset();
    return;
  }
  writing_->is_committing = true;
  FinalizeCheckpoint commit{writing_->checkpoint, writing_->world_size, {}, {damaged_.begin(), damaged_.end()}};
  for (const auto& [shard, writer] : writing_->writers) commit.shards.push_back(shard);
  effects.push_back(std::move(commit));
}

// Trouble that prevents restores comes first.
std::string JobStorage::trouble() const {
  if (known_listing_ && !known_listing_->trouble.empty()) return known_listing_->trouble;
  for (const auto& [node, trouble] : read_troubles_) {
    if (!trouble.empty()) return trouble;
  }
  return write_trouble_;
}

WriteOrder JobStorage::order_for(NodeId node) const {
  WriteOrder order;
  if (!writing_ || writing_->is_committing) return order;
  const auto found = writing_->by_writer.find(node);
  if (found == writing_->by_writer.end()) return order;
  order.shards = found->second;
  order.checkpoint = writing_->checkpoint;
  order.attempt = writing_->attempt;
  return order;
}

}  // namespace ckpt::core
