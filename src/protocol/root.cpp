#include "protocol/root.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::protocol {

namespace {

constexpr TimeMs settle_gap_ms_max = 1000;

}  // namespace

// ---- What it hears ----

// Nobody else writes the record in this root's term. So what is neither the record that it knows nor one that it wrote
// since is older: the store lost the newer one, was set back, or an answer was overtaken, and then a swap fails.
bool Root::is_set_back(const LifeRead& read) const {
  const bool is_own = std::find(swapped_.begin(), swapped_.end(), read.record) != swapped_.end();
  return in_charge() && read.record.epoch <= epoch_ && read.record != *life_ && !is_own;
}

void Root::on(const LifeRead& read) {
  if (is_set_back(read)) {
    life_revision_ = read.revision;
    is_set_back_ = true;
    return;
  }
  is_set_back_ = false;
  if (life_ && read.record != *life_) swapped_.clear();  // one that is unchanged may have overtaken a write
  if (!life_ || read.revision != life_revision_) swap_pending_ = false;
  const bool new_life = life_ && read.record.incarnation != life_->incarnation;
  if (life_ && read.record.seats != life_->seats) seats_asked_at_.reset();
  life_ = read.record;
  life_revision_ = read.revision;
  if (new_life) {
    bindings_.clear();
    if (places_.is_arranged()) {
      last_places_ = std::exchange(places_, {});
      last_placed_ = life_->seats;
    }
    all_waiting_since_.reset();
    abandoned_.clear();
    resume_at_ = 0;
    newest_abandoned_ = {};
    margin_ = 0;
    committed_ = {};
    source_lost_at_.reset();
    unreadable_since_.reset();
    stranded_.clear();
    alarm_.clear();
    storing_.on_new_life();
  }
  if (life_->decision.verdict == Verdict::restore) committed_ = std::max(committed_, life_->base);
}

void Root::on(NodeId from, const Report& report, TimeMs now) {
  Peer& peer = peers_[report.node];
  const Report& known = peer.report;
  // One of the node's former agent may arrive late; a clock that was set back must not silence the next agent for ever.
  const bool is_silent = now - peer.heard_at > config_.node_timeout_ms;
  const bool overtaken = report.agent_id == known.agent_id ? report.sequence <= known.sequence
                                                           : report.agent_id < known.agent_id && !is_silent;
  if (overtaken) return;
  if (report.node == predecessor_.node) predecessor_ = {};
  pieces_heard_ = pieces_heard_ + report.pieces.size() - known.pieces.size();
  peer.report = report;
  peer.via = from;
  peer.heard_at = now;
  peer.answer_due = true;
  storing_.on(report);
  if (report.epoch == epoch_ && report.directive > peer.obeyed) {
    peer.obeyed = report.directive;
    peer.obeyed_at = now;
  }
}

void Root::on_directive_of(NodeId other, TimeMs now) {
  if (other == predecessor_.node) predecessor_.silent_since = now;
}

bool Root::is_obeyed(TimeMs now) const {
  return !led_since_ || now - *led_since_ <= 2 * config_.lease_ms || is_followed(now, config_.node_timeout_ms);
}

// In the last `within_ms`.
bool Root::is_followed(TimeMs now, TimeMs within_ms) const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
    const auto& [node, peer] = entry;
    return node != config_.node && peer.obeyed != 0 && now - peer.obeyed_at <= within_ms;
  });
}

bool Root::is_present(const Peer& peer, TimeMs now) const {
  return peer.report.epoch == epoch_ && now - peer.heard_at <= config_.node_timeout_ms;
}

std::vector<NodeId> Root::nodes_present(TimeMs now) const {
  std::vector<NodeId> nodes;
  for (const auto& [node, peer] : peers_) {
    if (is_present(peer, now)) nodes.push_back(node);
  }
  return nodes;
}

// Who is here, through whom, and which members are not.
void Root::hear_roll(TimeMs now) {
  present_.clear();
  for (const auto& [node, peer] : peers_) {
    if (is_present(peer, now)) present_.push_back(&peer.report);
  }
  groups_ = peers_.size() < config_.relay_from ? Groups() : Groups(peers_.size(), present_, config_.node);
  missing_.clear();
  for (const Member& member : seating_.members()) {
    const auto peer = peers_.find(member.node);
    if (peer == peers_.end() || !is_present(peer->second, now)) missing_.push_back(member.node);
  }
}

// ---- What it concludes ----

// A conclusion is drawn from all reports anew, which takes the longer the more they say. So where that is much it is
// drawn now and then, for all that came in between: the root's work is bounded, however many reports there are.
TimeMs Root::settle_gap_ms() const {
  const auto gap_ms = static_cast<TimeMs>((peers_.size() + pieces_heard_) / config_.pieces_per_ms);
  return std::min(gap_ms, settle_gap_ms_max);
}

std::optional<TimeMs> Root::settle_wanted_at() const {
  return is_settled_ ? std::nullopt : std::optional(settled_at_ + settle_gap_ms());
}

void Root::settle(TimeMs now, Effects& effects) {
  if (!life_) return;
  is_settled_ = now - settled_at_ >= settle_gap_ms();
  if (!is_settled_) return;
  settled_at_ = now;
  const bool knows_seating = settle_seating(now, effects);
  if (!in_charge()) take_charge(now, effects);
  put_back(now, effects);
  if (!in_charge() || !knows_seating) return;
  if (!led_since_) led_since_ = listening_since_ = followed_at_ = now;
  // What is outlived is led until another life is opened, if anybody knows who is in it.
  if (has_begun() && has_lost_seats()) return open_life(world_size_told(), now, effects);
  if (may_swap_life(now) && world_size_told() != 0 && is_outlived()) return follow_outlived(now, effects);
  hear_roll(now);
  inventory_ = take_inventory(present_);
  settle_outsiders();
  settle_first_commit(now, effects);
  storing_.settle_listing(now, effects);
  settle_admissions(now, effects);
  settle_disagreements();
  settle_decision(now, effects);
  settle_placement(effects);
  settle_stranded(now, effects);
  settle_commits(now, effects);
  settle_losses(now, effects);
  settle_storage(now, effects);
  decodable_.clear();
  for (const auto& [version, pieces] : inventory_) {
    if (version >= std::max(committed_, life_->decision.version)) decodable_[version] = decodable(pieces);
  }
  reads_ = plan_reads(now);
  settle_health(now);
  send_directives(now, effects);
}

void Root::take_charge(TimeMs now, Effects& effects) {
  if (life_->epoch > epoch_ || !may_swap_life(now)) return;  // a newer root is at work, or this one has begun to be
  LifeRecord record = *life_;
  record.epoch = epoch_;
  swap_life(std::move(record), now, effects);
}

// With its seats, which may be gone as well.
void Root::put_back(TimeMs now, Effects& effects) {
  if (!is_set_back_ || !in_charge() || !may_swap_life(now)) return;
  is_set_back_ = false;
  effects.push_back(
      Notice{"the coordination store lost the job's record \"life\" or holds an older one; this node, "
             "which leads the job, writes it again"});
  swap_life(*life_, now, effects, seating_.name() == life_->seats ? seating_.seats() : std::vector<Seat>());
}

bool Root::may_swap_life(TimeMs now) const { return !swap_pending_ || now - swapped_at_ >= config_.lease_ms; }

void Root::swap_life(LifeRecord record, TimeMs now, Effects& effects, std::vector<Seat> seats) {
  if (!may_swap_life(now)) return;
  swap_pending_ = true;
  swapped_at_ = now;
  if (std::find(swapped_.begin(), swapped_.end(), record) == swapped_.end()) swapped_.push_back(record);
  effects.push_back(SwapLife{life_revision_, std::move(record), std::move(seats)});
}

// ---- Placement ----

void Root::settle_placement(Effects& effects) {
  if (!has_begun()) return;
  if (!places_.is_arranged()) {
    places_ = LifePlaces(*life_, seating_);
    last_places_ = {};
    last_placed_ = {};
    if (!places_.notice().empty()) effects.push_back(Notice{places_.notice()});
  }
  places_.stand_in(life_->stand_ins);
}

// Of the version to be restored: the shards that no node has, and that cannot be decoded.
std::set<std::string> Root::lacking_in_memory() const {
  static const Pieces none;
  const auto found = inventory_.find(life_->decision.version);
  const Pieces& pieces = found == inventory_.end() ? none : found->second;
  const auto decoded = decodable(pieces);
  std::set<std::string> lacking;
  for (const auto& [shard, place] : places_.of(life_->decision.version)) {
    if (place.parity) continue;  // nobody restores from that
    if (!pieces.contains(shard) && !decoded.contains(shard)) lacking.insert(shard);
  }
  return lacking;
}

// The decision stands, but what it needs may be lost before every rank has it: then those who wait are told, after as
// long as the decision itself would have waited for a node. A step that proved damaged when it was read is passed over
// at once, in a life of its own, as long as nobody has gone on from it.
void Root::settle_stranded(TimeMs now, Effects& effects) {
  std::set<std::string> lacking;
  reading_storage_ = false;
  const bool waiting =
      std::any_of(bindings_.begin(), bindings_.end(), [](const auto& entry) { return entry.second.rank.waiting; });
  if (waiting && life_->decision.verdict == Verdict::restore) {
    // A new root that has yet to hear every rank, or storage, does not know whether all of it is in memory.
    const auto stored = storing_.pieces_of(life_->decision.version);
    const bool knows = complete_life() && (!config_.storage || storing_.knows_all() || !stored.empty());
    lacking = lacking_in_memory();
    if (config_.storage && (!complete_life() || (!knows && !lacking.empty()))) {
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
  if (now - *source_lost_at_ < config_.node_wait_ms) return;
  stranded_ = explain_stranded(life_->decision.version, lacking, missing_);
}

// What is read from storage proved damaged, or nobody can read it for so long that something older is better. True: the
// next life decides anew.
bool Root::pass_over_step(bool is_lacking, TimeMs now, Effects& effects) {
  const Version version = life_->decision.version;
  const bool is_damaged = is_lacking && storing_.is_unusable(version);
  const bool fails = reading_storage_ && storing_.has_read_trouble();
  if (!fails) unreadable_since_.reset();
  if (fails && !unreadable_since_) unreadable_since_ = now;
  const bool is_late = fails && now - *unreadable_since_ >= config_.storage_wait_ms;
  reading_storage_ = reading_storage_ || is_damaged;
  if (!(is_damaged || is_late) || !complete_life() || !all_wait()) return false;
  if (!is_damaged) storing_.pass_over(version);
  LifeRecord next = *life_;
  ++next.incarnation;
  next.decision = {};
  swap_life(std::move(next), now, effects);
  return true;
}

}  // namespace ckpt::protocol
