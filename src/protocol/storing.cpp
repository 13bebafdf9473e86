#include "protocol/storing.hpp"

#include <algorithm>
#include <utility>

#include "protocol/lists.hpp"

namespace ckpt::protocol {

namespace {

constexpr TimeMs retry_ms = 2000;

// Preferably one that captured it: there a slot more is kept for this.
NodeId writer_of(const Place& place, const Holders& holders) {
  for (const NodeId preferred : place.capturers) {
    if (is_held_by(holders, preferred)) return preferred;
  }
  return holders.front().node;
}

}  // namespace

// ---- What is there ----

void Storing::on(const StorageListed& listed, TimeMs now) {
  listing_ = false;
  newest_incarnation_ = std::max(newest_incarnation_, listed.newest_incarnation);
  for (const PieceInfo& piece : listed.pieces) {
    stored_ = std::max(stored_, piece.version);
    newest_incarnation_ = std::max(newest_incarnation_, piece.version.incarnation());
  }
  if (std::exchange(listing_is_stale_, false)) return;
  if (!listed.trouble.empty()) list_again_at_ = now + retry_ms;
  take(listed);
}

// What an answer with trouble leaves out may be there all the same.
void Storing::take(const StorageListed& listed) {
  const auto before = std::exchange(heard_, listed);
  if (listed.trouble.empty() || !before) return;
  std::set<std::pair<Version, std::string>> told;
  for (const PieceInfo& piece : listed.pieces) told.emplace(piece.version, piece.shard);
  for (const PieceInfo& piece : before->pieces) {
    if (!told.contains({piece.version, piece.shard})) heard_->pieces.push_back(piece);
  }
  for (const std::string& step : before->unusable) add_once(heard_->unusable, step);
}

void Storing::on_new_life() {
  heard_.reset();
  listing_is_stale_ = listing_;
  read_troubles_.clear();
  passed_over_ = std::exchange(passed_over_next_, std::nullopt);
  if (writing_ && !writing_->is_committing) writing_.reset();
  if (writing_) writing_->is_of_older_life = true;
}

std::set<Version> Storing::unusable() const {
  std::set<Version> versions = damaged_;
  if (passed_over_) versions.insert(*passed_over_);
  return versions;
}

bool Storing::has_read_trouble() const {
  return std::any_of(read_troubles_.begin(), read_troubles_.end(),
                     [](const auto& entry) { return !entry.second.empty(); });
}

bool Storing::has_read_trouble(NodeId node) const {
  const auto found = read_troubles_.find(node);
  return found != read_troubles_.end() && !found->second.empty();
}

void Storing::settle_listing(TimeMs now, Effects& effects) {
  if (!config_.storage || knows_all() || is_finishing() || listing_ || now < list_again_at_) return;
  listing_ = true;
  effects.push_back(ListStorage{});
}

std::map<std::string, const PieceInfo*> Storing::pieces_of(Version version) const {
  std::map<std::string, const PieceInfo*> pieces;
  if (!heard_ || is_unusable(version)) return pieces;
  for (const PieceInfo& piece : heard_->pieces) {
    if (piece.version == version) pieces[piece.shard] = &piece;
  }
  return pieces;
}

// ---- What goes there ----

void Storing::on(const Report& report) {
  reported_[report.node] = report.written;
  read_troubles_[report.node] = report.read_trouble;
  damaged_.insert(report.damaged.begin(), report.damaged.end());
}

void Storing::on(const StepEnded& ended, TimeMs now) {
  if (!writing_ || ended.version != writing_->version) return;
  if (writing_->is_of_older_life) {  // what was heard in this life is from before it was there
    heard_.reset();
    listing_is_stale_ = listing_;
  }
  if (!ended.trouble.empty()) return fail(ended.trouble, now);
  stored_ = std::max(stored_, ended.version);
  stored_at_ = now;
  write_trouble_.clear();
  writing_.reset();
}

void Storing::fail(const std::string& trouble, TimeMs now) {
  write_trouble_ = trouble;
  write_again_at_ = now + retry_ms;
  writing_.reset();
}

// How many multiples of storage_every lie between what is stored and the newest commit.
std::int64_t Storing::periods_passed(const Life& life) const {
  if (config_.storage_every == 0) return 0;
  // What older lives stored beyond it is not this life's.
  const bool is_own = stored_.incarnation() == life.committed.incarnation();
  const Version base = is_own ? stored_ : life.began_from;
  const std::int64_t since = base ? base.iteration() : 0;
  return life.committed.iteration() / config_.storage_every - since / config_.storage_every;
}

bool Storing::is_due(const Life& life, TimeMs now) const {
  // What a newer life left there, whatever it is, does not stand for this one's.
  if (life.committed <= stored_ && stored_.incarnation() <= life.committed.incarnation()) return false;
  const bool is_time = config_.storage_interval_ms != 0 && now - stored_at_ >= config_.storage_interval_ms;
  return life.is_short || is_time || periods_passed(life) > 0;
}

void Storing::begin(const Life& life) {
  writing_ = Writing{life.committed, ++attempts_, life.world_size, {}, {}, {}, false, false};
  if (assign(life)) {
    skipped_ += static_cast<std::uint64_t>(std::max<std::int64_t>(periods_passed(life) - 1, 0));
  } else {
    writing_.reset();
  }
}

// Every piece that is not written yet needs a node that has it. False where one has none any more.
bool Storing::assign(const Life& life) {
  const auto pieces = life.inventory.find(writing_->version);
  if (pieces == life.inventory.end()) return false;
  for (const auto& [shard, place] : writing_->version == life.began_from ? life.restored_places : life.places) {
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

void Storing::settle_writes(const Life& life, TimeMs now, Effects& effects) {
  if (!config_.storage_writes || !heard_) return;
  if (!writing_ && now >= write_again_at_ && is_due(life, now)) begin(life);
  if (!writing_ || writing_->is_committing) return;
  for (const auto& [node, written] : reported_) {
    if (written.version != writing_->version || written.attempt != writing_->attempt) continue;
    if (!written.trouble.empty()) return fail(written.trouble, now);
    writing_->written.insert(written.shards.begin(), written.shards.end());
  }
  if (writing_->written.size() < writing_->writers.size()) {
    if (!assign(life)) writing_.reset();
    return;
  }
  writing_->is_committing = true;
  CommitStep commit{writing_->version, writing_->world_size, {}, {damaged_.begin(), damaged_.end()}};
  for (const auto& [shard, writer] : writing_->writers) commit.shards.push_back(shard);
  effects.push_back(std::move(commit));
}

// What keeps the job from restoring comes first.
std::string Storing::trouble() const {
  if (heard_ && !heard_->trouble.empty()) return heard_->trouble;
  for (const auto& [node, trouble] : read_troubles_) {
    if (!trouble.empty()) return trouble;
  }
  return write_trouble_;
}

WriteOrder Storing::order_for(NodeId node) const {
  WriteOrder order;
  if (!writing_ || writing_->is_committing) return order;
  const auto found = writing_->by_writer.find(node);
  if (found == writing_->by_writer.end()) return order;
  order.shards = found->second;
  order.version = writing_->version;
  order.attempt = writing_->attempt;
  return order;
}

}  // namespace ckpt::protocol
