#include "protocol/root.hpp"

#include <algorithm>

#include "protocol/lists.hpp"

namespace ckpt::protocol {

// ---- What it hears ----

void Root::on(const LifeRead& read) {
  if (life_ && read.revision < life_revision_) return;  // answers may overtake each other
  swap_pending_ = false;
  const bool new_life = life_ && read.record.incarnation != life_->incarnation;
  life_ = read.record;
  life_revision_ = read.revision;
  if (new_life) {
    bindings_.clear();
    arrangement_ = {};
    restored_.clear();
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
  peer.report = report;
  peer.heard_at = now;
  peer.answer_due = true;
  storing_.on(report);
  if (report.epoch == epoch_ && report.directive > peer.obeyed) {
    peer.obeyed = report.directive;
    peer.obeyed_at = now;
  }
}

bool Root::is_obeyed(TimeMs now) const {
  return now - elected_at_ <= 2 * config_.lease_ms || std::any_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
           const auto& [node, peer] = entry;
           return node != config_.node && peer.obeyed != 0 && now - peer.obeyed_at <= config_.node_timeout_ms;
         });
}

bool Root::is_present(const Peer& peer, TimeMs now) const {
  return peer.report.epoch == epoch_ && now - peer.heard_at <= config_.node_timeout_ms;
}

std::vector<const Report*> Root::present_reports(TimeMs now) const {
  std::vector<const Report*> reports;
  for (const auto& [node, peer] : peers_) {
    if (is_present(peer, now)) reports.push_back(&peer.report);
  }
  return reports;
}

std::vector<NodeId> Root::nodes_present(TimeMs now) const {
  std::vector<NodeId> nodes;
  for (const Report* report : present_reports(now)) nodes.push_back(report->node);
  return nodes;
}

// ---- What it concludes ----

void Root::settle(TimeMs now, Effects& effects) {
  if (!life_) return;
  if (!in_charge()) {
    take_charge(now, effects);
    return;
  }
  inventory_ = take_inventory(present_reports(now));
  storing_.settle_listing(now, effects);
  settle_admissions(now, effects);
  settle_decision(now, effects);
  settle_placement(effects);
  settle_stranded(now, effects);
  settle_commits(now, effects);
  settle_storage(now, effects);
  decodable_.clear();
  for (const auto& [version, pieces] : inventory_) {
    if (version >= std::max(committed_, life_->decision.version)) decodable_[version] = decodable(pieces);
  }
  send_directives(now, effects);
}

void Root::take_charge(TimeMs now, Effects& effects) {
  if (life_->epoch > epoch_) return;  // a newer root is at work
  LifeRecord record = *life_;
  record.epoch = epoch_;
  swap_life(record, now, effects);
}

void Root::swap_life(const LifeRecord& record, TimeMs now, Effects& effects) {
  if (swap_pending_ && now - swapped_at_ < config_.lease_ms) return;
  swap_pending_ = true;
  swapped_at_ = now;
  effects.push_back(SwapLife{life_revision_, record});
}

// ---- Placement ----

void Root::settle_placement(Effects& effects) {
  if (!has_begun() || !arrangement_.places.empty()) return;
  arrangement_ = arrange(life_->seats, life_->strategy, life_->protection);
  restored_ = places_with(life_->decision.cuts, life_->seats, arrangement_);
  if (!arrangement_.notice.empty()) effects.push_back(Notice{arrangement_.notice});
}

// The version that the life began from may have been stored under another placement.
const Places& Root::places_of(Version version) const {
  return version == life_->decision.version ? restored_ : arrangement_.places;
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
    std::set<std::string> shards;
    for (const auto& [shard, place] : restored_) {
      if (!place.parity) shards.insert(shard);  // nobody restores from that
    }
    // A new root that has yet to hear every rank, or storage, does not know whether all of it is in memory.
    const auto stored = storing_.pieces_of(life_->decision.version);
    const bool knows = complete_life() && (!config_.storage || storing_.knows_all() || !stored.empty());
    lacking = without_source(inventory_, life_->decision.version, shards);
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
  stranded_ = explain_stranded(life_->decision.version, lacking, missing_members(now));
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
  const Directive common = common_directive(now);
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
Directive Root::common_directive(TimeMs now) const {
  Directive directive;
  directive.root = config_.node;
  directive.epoch = epoch_;
  directive.incarnation = life_->incarnation;
  directive.decision = life_->decision;
  directive.committed = committed_;
  directive.abandoned = abandoned_;
  directive.resume_at = resume_at_;
  directive.stranded = stranded_;
  directive.alarm = alarm_;
  directive.roll_call = roll_call_;
  directive.reading_storage = reading_storage_;
  directive.stored = storing_.stored();
  directive.stored_skipped = storing_.skipped();
  directive.storage_trouble = config_.storage ? storing_.trouble() : storage_trouble(now);
  if (life_->decision.verdict == Verdict::undecided) {
    for (Rank rank = 0; rank < life_->world_size; ++rank) {
      const auto bound = bindings_.find(rank);
      if (bound == bindings_.end() || !bound->second.rank.waiting) directive.missing_ranks.push_back(rank);
    }
    directive.missing_nodes = missing_members(now);
  } else {
    directive.copies_now = copies_now();
    directive.parity_now = parity_now();
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
      const auto share = arrangement_.shares.find(rank.rank);
      directive.admitted.push_back({rank.rank, rank.instance, {}});
      if (share != arrangement_.shares.end()) directive.admitted.back().share = share->second;
    }
  }
  if (life_->decision.verdict == Verdict::undecided) return directive;
  for (const auto& [shard, place] : arrangement_.places) {
    if (contains(place.holders, node)) directive.wanted.push_back(shard);
  }
  if (peer.report.epoch != epoch_) return directive;  // what it has is not known yet
  // A node that replaced a member waits for the life in which it gets a rank.
  if (!contains(life_->members, Member{node, peer.report.arena_id})) return directive;
  const Version base = std::max(committed_, life_->decision.version);
  if (life_->decision.version && base == life_->decision.version) add_reads(node, now, directive);
  if (base) add_fetches(node, base, now, directive);
  for (const auto& [version, pieces] : inventory_) {
    if (version <= base || version.incarnation() != life_->incarnation || contains(abandoned_, version)) continue;
    add_fetches(node, version, now, directive);
  }
  return directive;
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
void Root::add_reads(NodeId node, TimeMs now, Directive& directive) const {
  const Version version = life_->decision.version;
  const auto stored = storing_.pieces_of(version);
  if (stored.empty()) return;
  std::set<std::string> shards;
  for (const auto& [shard, piece] : stored) shards.insert(shard);
  const auto lacking = without_source(inventory_, version, shards);
  for (const auto& [shard, piece] : stored) {
    const auto place = restored_.find(shard);
    if (place == restored_.end() || reader_of(place->second, now) != node || !lacking.contains(shard)) continue;
    directive.fetches.push_back({*piece, {storage_node}, {}});
  }
}

// A version that is to be restored goes to all who restore from it; one that is committed to whoever must hold it and
// has lost it; one on its way there to those who do not capture it themselves.
bool Root::should_have(NodeId node, const Place& place, Version version) const {
  if (version == life_->decision.version) return contains(place.holders, node) || contains(place.owners, node);
  const bool has_it_soon = version > committed_ && contains(place.capturers, node);
  return contains(place.holders, node) && !has_it_soon;
}

void Root::add_fetches(NodeId node, Version version, TimeMs now, Directive& directive) const {
  const auto pieces = inventory_.find(version);
  if (pieces == inventory_.end()) return;
  const auto& decoded = decodable_.at(version);
  for (const auto& [shard, place] : places_of(version)) {
    if (!should_have(node, place, version) || has(node, shard, version)) continue;
    const auto holders = pieces->second.find(shard);
    if (holders != pieces->second.end()) {
      directive.fetches.push_back(fetch_of(shard, place, version, holders->second));
    } else if (place.parity) {
      if (auto made = make_parity(*place.parity, version, life_->world_size, pieces->second))
        directive.fetches.push_back({std::move(made->piece), {parity_node}, std::move(made->making)});
    } else if (const auto lost = decoded.find(shard); lost != decoded.end() && maker_of(place, version, now) == node) {
      directive.fetches.push_back({lost->second.piece, {parity_node}, lost->second.making});
    }
  }
}

FetchOrder Root::fetch_of(const std::string& shard, const Place& place, Version version, const Holders& holders) const {
  FetchOrder order{*holders.front().piece, {}, {}};
  for (const NodeId preferred : place.capturers) {
    if (has(preferred, shard, version)) order.sources.push_back(preferred);
  }
  for (const Holder& holder : holders) add_once(order.sources, holder.node);
  return order;
}

// What is lost is decoded by one node, from which the others then get it.
NodeId Root::maker_of(const Place& place, Version version, TimeMs now) const {
  for (const auto* nodes : {&place.owners, &place.holders}) {
    for (const NodeId node : *nodes) {
      const auto peer = peers_.find(node);
      if (peer != peers_.end() && is_present(peer->second, now) && should_have(node, place, version)) return node;
    }
  }
  return no_node;
}

}  // namespace ckpt::protocol
