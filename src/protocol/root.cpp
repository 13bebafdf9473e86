#include "protocol/root.hpp"

#include <algorithm>

#include "protocol/lists.hpp"

namespace ckpt::protocol {

namespace {

constexpr std::size_t listed_max = 64;  // of those that are waited for: people need not see them all
constexpr std::size_t orders_max = 64;  // for a node at a time: the next ones come as it reports
constexpr TimeMs settle_gap_ms_max = 1000;

}  // namespace

// ---- What it hears ----

void Root::on(const LifeRead& read) {
  if (life_ && read.revision < life_revision_) return;  // answers may overtake each other
  swap_pending_ = false;
  const bool new_life = life_ && read.record.incarnation != life_->incarnation;
  if (life_ && read.record.members != life_->members) note_released(read.record.members);
  life_ = read.record;
  life_revision_ = read.revision;
  member_arenas_.clear();
  for (const Member& member : life_->members) member_arenas_[member.node] = member.arena_id;
  if (new_life) {
    bindings_.clear();
    places_ = {};
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

void Root::on(const Report& report, TimeMs now) {
  Peer& peer = peers_[report.node];
  const Report& known = peer.report;
  // One of the node's former agent may arrive late; a clock that was set back must not silence the next agent for ever.
  const bool is_silent = now - peer.heard_at > config_.node_timeout_ms;
  const bool overtaken = report.agent_id == known.agent_id ? report.sequence <= known.sequence
                                                           : report.agent_id < known.agent_id && !is_silent;
  if (overtaken) return;
  pieces_heard_ = pieces_heard_ + report.pieces.size() - known.pieces.size();
  peer.report = report;
  peer.heard_at = now;
  peer.answer_due = true;
  storing_.on(report);
  if (report.epoch == epoch_ && report.directive > peer.obeyed) {
    peer.obeyed = report.directive;
    peer.obeyed_at = now;
  }
}

bool Root::is_obeyed(TimeMs now) const { return now - elected_at_ <= 2 * config_.lease_ms || is_followed(now); }

bool Root::is_followed(TimeMs now) const {
  return std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
    const auto& [node, peer] = entry;
    return node != config_.node && peer.obeyed != 0 && now - peer.obeyed_at <= config_.node_timeout_ms;
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

// Who is here, and which members are not.
void Root::hear_roll(TimeMs now) {
  present_.clear();
  for (const auto& [node, peer] : peers_) {
    if (is_present(peer, now)) present_.push_back(&peer.report);
  }
  missing_.clear();
  for (const Member& member : life_->members) {
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
  if (!in_charge()) {
    take_charge(now, effects);
    return;
  }
  hear_roll(now);
  inventory_ = take_inventory(present_);
  storing_.settle_listing(now, effects);
  settle_admissions(now, effects);
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
  send_directives(now, effects);
}

void Root::take_charge(TimeMs now, Effects& effects) {
  if (life_->epoch > epoch_ || !may_swap_life(now)) return;  // a newer root is at work, or this one has begun to be
  LifeRecord record = *life_;
  record.epoch = epoch_;
  swap_life(record, now, effects);
}

bool Root::may_swap_life(TimeMs now) const { return !swap_pending_ || now - swapped_at_ >= config_.lease_ms; }

void Root::swap_life(const LifeRecord& record, TimeMs now, Effects& effects) {
  if (!may_swap_life(now)) return;
  swap_pending_ = true;
  swapped_at_ = now;
  effects.push_back(SwapLife{life_revision_, record});
}

// ---- Placement ----

void Root::settle_placement(Effects& effects) {
  if (!has_begun()) return;
  if (!places_.is_arranged()) {
    places_ = LifePlaces(*life_);
    if (!places_.notice().empty()) effects.push_back(Notice{places_.notice()});
  }
  places_.stand_in(life_->stand_ins);
}

bool Root::is_member(NodeId node, std::uint64_t arena_id) const {
  const auto found = member_arenas_.find(node);
  return found != member_arenas_.end() && found->second == arena_id;
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
  swap_life(next, now, effects);
  return true;
}

// ---- Directives ----

void Root::send_directives(TimeMs now, Effects& effects) {
  const Directive common = common_directive();
  for (auto& [node, peer] : peers_) {
    if (now - peer.heard_at > config_.node_timeout_ms) continue;
    Directive directive = directive_for(peer, common, now);
    directive.sequence = peer.last_directive.sequence;  // for the comparison
    if (directive == peer.last_directive && !peer.answer_due) continue;
    directive.sequence = ++directive_sequence_;
    peer.last_directive = directive;
    peer.answer_due = false;
    effects.push_back(Send{node, std::move(directive)});
  }
}

// What it tells all nodes alike.
Directive Root::common_directive() const {
  Directive directive;
  directive.root = config_.node;
  directive.epoch = epoch_;
  directive.incarnation = life_->incarnation;
  directive.decision = life_->decision;
  directive.decision.cuts.clear();  // to each node its own
  directive.committed = committed_;
  directive.abandoned = abandoned_;
  directive.resume_at = resume_at_;
  directive.stranded = stranded_;
  directive.alarm = alarm_;
  directive.roll_call = roll_call_;
  directive.reading_storage = reading_storage_;
  directive.stored = storing_.stored();
  directive.stored_skipped = storing_.skipped();
  directive.storage_trouble = config_.storage ? storing_.trouble() : storage_trouble();
  if (life_->decision.verdict == Verdict::undecided) {
    for (Rank rank = 0; rank < life_->world_size && directive.missing_ranks.size() < listed_max; ++rank) {
      const auto bound = bindings_.find(rank);
      if (bound == bindings_.end() || !bound->second.rank.waiting) directive.missing_ranks.push_back(rank);
    }
    directive.missing_nodes = missing_;
    directive.missing_nodes.resize(std::min(missing_.size(), listed_max));
  } else {
    directive.copies_now = copies_now();
    directive.parity_now = parity_now();
    directive.stand_ins = life_->stand_ins;
    directive.stand_ins.resize(std::min(directive.stand_ins.size(), listed_max));
  }
  return directive;
}

Directive Root::directive_for(const Peer& peer, Directive directive, TimeMs now) const {
  const NodeId node = peer.report.node;
  directive.write = storing_.order_for(node);
  for (const RankReport& rank : peer.report.ranks) {
    const auto bound = bindings_.find(rank.rank);
    if (auto refusal = refusal_of(node, rank)) {
      directive.refused.push_back(std::move(*refusal));
    } else if (bound != bindings_.end() && bound->second.rank.instance == rank.instance) {
      directive.admitted.push_back({rank.rank, rank.instance, {}});
      if (const Cut* cut = cut_of(rank.main_shard)) add_once(directive.decision.cuts, *cut);
      if (const Share* share = places_.share_of(rank.rank)) directive.admitted.back().share = *share;
    }
  }
  if (life_->decision.verdict == Verdict::undecided) return directive;
  for (const auto& [place, role] : places_.own_of(node)) {
    if (role.holds) directive.wanted.push_back(place->first);
  }
  if (peer.report.epoch != epoch_) return directive;  // what it has is not known yet
  // A node that replaced a member waits for the life in which it gets a rank.
  if (!is_member(node, peer.report.arena_id) && !stands_in(peer.report)) return directive;
  const Version base = std::max(committed_, life_->decision.version);
  if (const auto reads = reads_.find(node); reads != reads_.end()) {
    const std::size_t count = std::min(reads->second.size(), orders_max);
    directive.fetches.assign(reads->second.begin(), reads->second.begin() + static_cast<std::ptrdiff_t>(count));
  }
  if (base) add_fetches(node, base, now, directive);
  for (const auto& [version, pieces] : inventory_) {
    if (version <= base || version.incarnation() != life_->incarnation || contains(abandoned_, version)) continue;
    add_fetches(node, version, now, directive);
  }
  return directive;
}

// How the decided version has a main shard; null where it is not cut.
const Cut* Root::cut_of(const std::string& main_shard) const {
  const auto& cuts = life_->decision.cuts;  // by shard
  const auto found = std::lower_bound(cuts.begin(), cuts.end(), main_shard,
                                      [](const Cut& cut, const std::string& shard) { return cut.shard < shard; });
  return found != cuts.end() && found->shard == main_shard ? &*found : nullptr;
}

// The first that is there and has not failed to read.
NodeId Root::reader_of(const Place& place, TimeMs now) const {
  for (const NodeId node : place.holders) {
    const auto peer = peers_.find(node);
    if (peer != peers_.end() && is_present(peer->second, now) && !storing_.has_read_trouble(node)) return node;
  }
  return place.holders.front();
}

// What no node has of the version to be restored is read from storage: by one node, from which the others then get it.
std::map<NodeId, std::vector<FetchOrder>> Root::plan_reads(TimeMs now) const {
  std::map<NodeId, std::vector<FetchOrder>> reads;
  const Version version = life_->decision.version;
  if (!version || committed_ > version) return reads;
  const auto stored = storing_.pieces_of(version);
  if (stored.empty()) return reads;
  for (const std::string& shard : lacking_in_memory()) {
    const auto piece = stored.find(shard);
    if (piece == stored.end()) continue;
    reads[reader_of(places_.of(version).at(shard), now)].push_back({*piece->second, {storage_node}, {}});
  }
  return reads;
}

// A version that is to be restored goes to all who restore from it; one that is committed to whoever must hold it and
// has lost it; one on its way there to those who do not capture it themselves.
bool Root::should_have(const Role& role, Version version) const {
  if (version == life_->decision.version) return role.holds || role.owns;
  const bool has_it_soon = version > committed_ && role.captures;
  return role.holds && !has_it_soon;
}

void Root::add_fetches(NodeId node, Version version, TimeMs now, Directive& directive) const {
  const auto pieces = inventory_.find(version);
  if (pieces == inventory_.end()) return;
  const auto& decoded = decodable_.at(version);
  for (const auto& [entry, role] : places_.of(node, version)) {
    if (directive.fetches.size() >= orders_max) return;
    if (!should_have(role, version)) continue;
    const auto& [shard, place] = *entry;
    const auto holders = pieces->second.find(shard);
    if (holders != pieces->second.end()) {
      if (!is_held_by(holders->second, node)) directive.fetches.push_back(fetch_of(node, place, holders->second));
    } else if (place.parity) {
      if (auto made = make_parity(*place.parity, version, life_->world_size, pieces->second))
        directive.fetches.push_back({std::move(made->piece), {parity_node}, std::move(made->making)});
    } else if (const auto lost = decoded.find(shard); lost != decoded.end() && maker_of(place, version, now) == node) {
      directive.fetches.push_back({lost->second.piece, {parity_node}, lost->second.making});
    }
  }
}

// A few sources are enough. Those that captured it come first, then others from the node's neighbour on, so that not
// everybody asks the same ones.
FetchOrder Root::fetch_of(NodeId node, const Place& place, const Holders& holders) {
  FetchOrder order{*holders.front().piece, {}, {}};
  for (const NodeId preferred : place.capturers) {
    if (order.sources.size() < sources_max && is_held_by(holders, preferred)) order.sources.push_back(preferred);
  }
  const auto next = std::upper_bound(holders.begin(), holders.end(), node,
                                     [](NodeId wanted, const Holder& holder) { return wanted < holder.node; });
  const auto first = static_cast<std::size_t>(next - holders.begin());
  for (std::size_t i = 0; i < holders.size() && order.sources.size() < sources_max; ++i) {
    add_once(order.sources, holders[(first + i) % holders.size()].node);
  }
  return order;
}

// What is lost is decoded by one node, from which the others then get it.
NodeId Root::maker_of(const Place& place, Version version, TimeMs now) const {
  for (const auto* nodes : {&place.owners, &place.holders}) {
    for (const NodeId node : *nodes) {
      const auto peer = peers_.find(node);
      if (peer != peers_.end() && is_present(peer->second, now) && should_have(role_of(node, place), version))
        return node;
    }
  }
  return no_node;
}

}  // namespace ckpt::protocol
