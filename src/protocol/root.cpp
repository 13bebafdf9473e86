#include "protocol/root.hpp"

#include <algorithm>

namespace ckpt::protocol {

namespace {

template <class Container, class Value>
bool contains(const Container& container, const Value& value) {
  return std::find(container.begin(), container.end(), value) != container.end();
}

template <class Value>
void add_once(std::vector<Value>& list, const Value& value) {
  if (!contains(list, value)) list.push_back(value);
}

}  // namespace

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

// ---- Admission ----

void Root::settle_admissions(TimeMs now, Effects& effects) {
  refresh_bindings();
  // Members of this life that a new root has not met yet come first, then newcomers, then those who wait since a life
  // that was never decided: they are carried over.
  for (const auto& [node, peer] : peers_) {
    if (!is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      if (rank.incarnation != life_->incarnation || rank.incarnation == 0 || superseded_.contains(rank.instance))
        continue;
      if (is_misplaced(peer)) {
        open_incarnation(rank, now, effects);
      } else {
        bindings_.try_emplace(rank.rank, Binding{node, rank});
      }
    }
  }
  for (const auto& [node, peer] : peers_) {
    if (!is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      if (rank.incarnation == 0 && !superseded_.contains(rank.instance)) admit_newcomer(node, rank, now, effects);
    }
  }
  if (life_->decision.verdict != Verdict::undecided) return;
  for (const auto& [node, peer] : peers_) {
    if (!is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      const bool carried = rank.incarnation != 0 && rank.incarnation < life_->incarnation && rank.waiting;
      if (carried && rank.world_size == life_->world_size && !superseded_.contains(rank.instance)) {
        bindings_.try_emplace(rank.rank, Binding{node, rank});
      }
    }
  }
}

void Root::refresh_bindings() {
  const bool undecided = life_->decision.verdict == Verdict::undecided;
  for (auto it = bindings_.begin(); it != bindings_.end();) {
    Binding& binding = it->second;
    const Report& report = peers_.at(binding.node).report;
    const auto entry = std::find_if(report.ranks.begin(), report.ranks.end(), [&](const RankReport& rank) {
      return rank.rank == it->first && rank.instance == binding.rank.instance;
    });
    if (entry != report.ranks.end()) binding.rank = *entry;
    const bool gone = report.epoch == epoch_ && (entry == report.ranks.end() || serves_older_life(*entry));
    // Before the decision a trainer that is gone makes room for the next one; after it the life keeps its shape.
    const bool leaves = undecided ? gone : is_misplaced(peers_.at(binding.node));
    it = leaves ? bindings_.erase(it) : std::next(it);
  }
}

// A decision may be written late, when a rank has moved since: its node is then none of the life's. It needs a life of
// its own.
bool Root::is_misplaced(const Peer& peer) const {
  return has_begun() && !contains(life_->members, Member{peer.report.node, peer.report.arena_id});
}

// It was given an older life's version before it could be carried over into this one.
bool Root::serves_older_life(const RankReport& rank) const {
  return rank.incarnation != 0 && rank.incarnation < life_->incarnation && !rank.waiting;
}

void Root::admit_newcomer(NodeId node, const RankReport& rank, TimeMs now, Effects& effects) {
  const auto bound = bindings_.find(rank.rank);
  if (bound != bindings_.end() && bound->second.rank.instance == rank.instance) return;
  const bool second_hello = bound != bindings_.end();
  const bool decided = life_->decision.verdict != Verdict::undecided;
  // A job without a record may have steps on storage, and its lives must be newer than those.
  const bool knows_lives = !config_.storage || storing_.knows_all() || storing_.newest_incarnation() != 0;
  if (life_->incarnation == 0 && !knows_lives) return;
  if (life_->incarnation == 0 || second_hello || decided) {
    open_incarnation(rank, now, effects);
    return;
  }
  if (rank.world_size == life_->world_size) bindings_.emplace(rank.rank, Binding{node, rank});
}

void Root::open_incarnation(const RankReport& newcomer, TimeMs now, Effects& effects) {
  const auto bound = bindings_.find(newcomer.rank);
  if (bound != bindings_.end() && bound->second.rank.instance != newcomer.instance) {
    superseded_.insert(bound->second.rank.instance);
  }
  LifeRecord next = *life_;
  next.incarnation = std::max(life_->incarnation, storing_.newest_incarnation()) + 1;
  next.world_size = newcomer.world_size;
  next.decision = {};
  swap_life(next, now, effects);
}

bool Root::has_begun() const {
  return life_->decision.verdict == Verdict::fresh || life_->decision.verdict == Verdict::restore;
}

bool Root::complete_life() const { return life_->incarnation != 0 && bindings_.size() == life_->world_size; }

std::optional<Refusal> Root::refusal_of(NodeId node, const RankReport& rank) const {
  const auto bound = bindings_.find(rank.rank);
  const bool is_bound = bound != bindings_.end() && bound->second.rank.instance == rank.instance;
  if (is_bound && !serves_older_life(rank)) return std::nullopt;
  const bool undecided = life_->decision.verdict == Verdict::undecided;
  const bool newcomer = rank.incarnation == 0;
  if (newcomer && undecided && life_->incarnation != 0 && rank.world_size != life_->world_size) {
    return Refusal{rank.rank, rank.instance, false, life_->incarnation,
                   "rank " + std::to_string(rank.rank) + " on node " + std::to_string(node) + " says the job has " +
                       std::to_string(rank.world_size) + " ranks, the others say " + std::to_string(life_->world_size) +
                       ": start all ranks with one world_size"};
  }
  const bool outlived = !newcomer && rank.incarnation < life_->incarnation && !(rank.waiting && undecided);
  if (outlived || superseded_.contains(rank.instance)) {
    return Refusal{rank.rank, rank.instance, true, life_->incarnation,
                   "rank " + std::to_string(rank.rank) + " was superseded by life " +
                       std::to_string(life_->incarnation) + " of the job: this process takes no further part, end it"};
  }
  return std::nullopt;
}

// ---- Decision ----

std::vector<NodeId> Root::missing_members(TimeMs now) const {
  std::vector<NodeId> missing;
  for (const Member& member : life_->members) {
    const auto peer = peers_.find(member.node);
    if (peer == peers_.end() || !is_present(peer->second, now)) missing.push_back(member.node);
  }
  return missing;
}

void Root::settle_decision(TimeMs now, Effects& effects) {
  if (life_->decision.verdict != Verdict::undecided || !complete_life()) return;
  if (!all_wait()) {
    all_waiting_since_.reset();
    return;
  }
  if (!all_waiting_since_) {
    all_waiting_since_ = now;
    ++roll_call_;
  }
  if (!all_answered(now)) return;

  // What storage has may be newer than what is left in memory, and it is not to be taken for empty when it is silent;
  // but what there is to go on from does not wait for it for ever.
  const TimeMs waited_ms = now - *all_waiting_since_;
  const bool is_untold = !storage_trouble(now).empty();
  const bool storage_is_late = waited_ms >= config_.storage_wait_ms;
  const RecoveryAnswer answer = plan_recovery(question(!is_untold || storage_is_late, now));
  const bool can_restore = answer.decision.verdict == Verdict::restore;
  if (is_untold && !(can_restore && (answer.final || storage_is_late))) return;
  if (!answer.final && waited_ms < config_.node_wait_ms) return;
  LifeRecord decided = *life_;
  decided.decision = answer.decision;
  // Where nothing was decided for good, the nodes that might still complete it stay the ones to wait for.
  const bool begins = can_restore || answer.decision.verdict == Verdict::fresh;
  if (begins) enter_members(decided, answer.base);
  swap_life(decided, now, effects);
}

// The ranks as they sit now are the life's, and so is what this root was told of placement.
void Root::enter_members(LifeRecord& record, Version base) const {
  record.base = base;
  record.members_life = record.incarnation;
  record.members.clear();
  record.seats.clear();
  record.strategy = config_.strategy;
  record.copies = config_.copies;
  for (const auto& [rank, binding] : bindings_) {
    const Report& report = peers_.at(binding.node).report;
    add_once(record.members, Member{binding.node, report.arena_id});
    record.seats.push_back({rank, binding.node, report.domain, binding.rank.main_shard, binding.rank.private_shard});
  }
}

RecoveryQuestion Root::question(bool with_storage, TimeMs now) const {
  RecoveryQuestion question;
  question.reports = present_reports(now);
  question.world_size = life_->world_size;
  question.missing = missing_members(now);
  question.members = life_->members;
  question.members_life = life_->members_life;
  question.base = life_->base;
  question.first_commit = life_->first_commit;
  question.asks_storage = config_.storage;
  question.storage_trouble = storage_trouble(now);
  if (with_storage && storing_.has_heard()) {
    question.stored = storing_.heard().pieces;
    question.unusable = storing_.heard().unusable;
  }
  question.damaged = storing_.damaged();
  for (const auto& [rank, binding] : bindings_) {
    question.shards.insert(binding.rank.main_shard);
    question.shards.insert(binding.rank.private_shard);
  }
  return question;
}

// Why it is not known what storage has; "" where it is, or where there is none.
std::string Root::storage_trouble(TimeMs now) const {
  if (config_.storage && storing_.has_heard()) return storing_.heard().trouble;
  if (config_.storage) return "it has not answered yet";
  for (const Report* report : present_reports(now)) {
    if (report->storage) {
      return "node " + std::to_string(config_.node) + ", which leads the job, was told of none, node " +
             std::to_string(report->node) + " was; give all agents of the job the same option storage";
    }
  }
  return "";
}

bool Root::all_wait() const {
  return std::all_of(bindings_.begin(), bindings_.end(), [](const auto& entry) { return entry.second.rank.waiting; });
}

// A node counts as present for a while after its death. So that the decision does not count on such a one, every node
// is heard once more; a dead one drops out in time.
bool Root::all_answered(TimeMs now) const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
    return !is_present(entry.second, now) || entry.second.report.roll_call == roll_call_;
  });
}

// ---- Placement ----

void Root::settle_placement(Effects& effects) {
  if (!has_begun() || !arrangement_.places.empty()) return;
  arrangement_ = arrange(life_->seats, life_->strategy, life_->copies);
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
    for (const auto& [shard, place] : restored_) shards.insert(shard);
    // A new root that has yet to hear every rank, or storage, does not know whether all of it is in memory.
    const bool knows = complete_life() && (!config_.storage || storing_.has_heard());
    lacking = without_source(inventory_, life_->decision.version, shards);
    if (config_.storage && (!complete_life() || (!knows && !lacking.empty()))) {
      reading_storage_ = true;
      return;
    }
    const auto stored = storing_.pieces_of(life_->decision.version);
    reading_storage_ = std::erase_if(lacking, [&](const auto& shard) { return stored.contains(shard); }) != 0;
  }
  if (lacking.empty()) {
    source_lost_at_.reset();
    stranded_.clear();
    return;
  }
  reading_storage_ = reading_storage_ || storing_.damaged().contains(life_->decision.version);
  if (storing_.damaged().contains(life_->decision.version) && complete_life() && all_wait()) {
    LifeRecord next = *life_;
    ++next.incarnation;
    next.decision = {};
    swap_life(next, now, effects);
    return;
  }
  if (!source_lost_at_) source_lost_at_ = now;
  if (now - *source_lost_at_ < config_.node_wait_ms) return;
  stranded_ = explain_stranded(life_->decision.version, lacking, missing_members(now));
}

// ---- Commit ----

bool Root::has(NodeId node, const std::string& shard, Version version) const {
  const auto pieces = inventory_.find(version);
  if (pieces == inventory_.end()) return false;
  const auto holders = pieces->second.find(shard);
  return holders != pieces->second.end() && std::any_of(holders->second.begin(), holders->second.end(),
                                                        [&](const Holder& holder) { return holder.node == node; });
}

bool Root::is_complete(const std::map<std::string, Holders>& pieces, const Places& places) const {
  return std::all_of(places.begin(), places.end(), [&](const auto& entry) {
    const auto& [shard, place] = entry;
    const auto found = pieces.find(shard);
    if (found == pieces.end() || !agree(found->second)) return false;
    return std::all_of(place.holders.begin(), place.holders.end(), [&](NodeId node) {
      return std::any_of(found->second.begin(), found->second.end(),
                         [&](const Holder& holder) { return holder.node == node; });
    });
  });
}

// Some rank has moved past the version without having it: it skipped it, discarded it, or never tried.
bool Root::never_complete(Version version) const {
  for (const auto& [rank, binding] : bindings_) {
    const RankReport& report = binding.rank;
    if (report.attempted < version.iteration() || report.capturing == version.iteration()) continue;
    if (!has(binding.node, report.private_shard, version)) return true;
    const auto parts = parts_of(report.main_shard, arrangement_.shares.at(rank));
    const auto has_part = [&, node = binding.node](const auto& part) { return has(node, part, version); };
    if (!std::all_of(parts.begin(), parts.end(), has_part)) return true;
  }
  return false;
}

void Root::settle_commits(TimeMs now, Effects& effects) {
  if (!has_begun() || !complete_life()) return;
  for (const auto& [rank, binding] : bindings_) {
    const Peer& peer = peers_.at(binding.node);
    if (!is_present(peer, now)) return;
    const Version known = peer.report.highest_commit;
    if (known.incarnation() == life_->incarnation) committed_ = std::max(committed_, known);
  }

  const Version restored = life_->decision.version;
  const auto its_pieces = inventory_.find(restored);
  // On record first: what was committed before goes with it, and the next life must not look for that.
  if (restored > committed_ && its_pieces != inventory_.end() && is_complete(its_pieces->second, restored_)) {
    LifeRecord record = *life_;
    record.base = restored;
    swap_life(record, now, effects);
  }

  abandoned_.clear();
  for (auto it = inventory_.rbegin(); it != inventory_.rend(); ++it) {
    const auto& [version, pieces] = *it;
    if (version.incarnation() != life_->incarnation || version <= committed_) continue;
    if (is_complete(pieces, arrangement_.places)) {
      committed_ = version;
      margin_ = 0;
      break;
    }
  }
  for (const auto& [version, pieces] : inventory_) {
    if (version.incarnation() != life_->incarnation || version <= committed_) continue;
    for (const auto& [shard, holders] : pieces) {
      if (agree(holders)) continue;
      alarm_ = "silent data corruption: shard " + shard + " of iteration " + std::to_string(version.iteration()) +
               " differs between its ranks; node " + std::to_string(holders.back().node) + " does not match node " +
               std::to_string(holders.front().node);
      abandoned_.push_back(version);
      break;
    }
    if (never_complete(version)) {
      add_once(abandoned_, version);
      if (version > newest_abandoned_) name_next_iteration(version);
    }
  }
  if (committed_.incarnation() == life_->incarnation && life_->first_commit.incarnation() != life_->incarnation) {
    LifeRecord record = *life_;
    record.first_commit = committed_;
    swap_life(record, now, effects);
  }
}

// The iteration that all ranks take again. Ranks that are told too late take another one first and miss this one: from
// one abandoned version to the next it lies further ahead, until a commit shows that they meet.
void Root::name_next_iteration(Version abandoned) {
  newest_abandoned_ = abandoned;
  std::int64_t furthest = abandoned.iteration();
  for (const auto& [rank, binding] : bindings_) furthest = std::max(furthest, binding.rank.attempted);
  resume_at_ = std::max(resume_at_, furthest + 1 + margin_);
  margin_ = std::min<std::int64_t>(std::max<std::int64_t>(1, 2 * margin_), 64);
}

std::uint32_t Root::copies_now() const {
  const auto pieces = inventory_.find(committed_);
  if (!committed_ || pieces == inventory_.end() || arrangement_.places.empty()) return 0;
  std::size_t fewest = SIZE_MAX;
  for (const auto& [shard, place] : places_of(committed_)) {
    const auto holders = pieces->second.find(shard);
    fewest = std::min(fewest, holders == pieces->second.end() ? 0 : holders->second.size());
  }
  return static_cast<std::uint32_t>(fewest);
}

// Some piece of the version has fewer holders left than it was given.
bool Root::is_short(Version version) const {
  const auto pieces = inventory_.find(version);
  if (pieces == inventory_.end()) return true;
  const Places& places = places_of(version);
  return std::any_of(places.begin(), places.end(), [&](const auto& entry) {
    const auto& [shard, place] = entry;
    const auto holders = pieces->second.find(shard);
    return holders == pieces->second.end() || holders->second.size() < place.holders.size();
  });
}

// As far as those who are here have heard. A new root does not announce it: there may be a newer one.
Version Root::newest_known_commit(TimeMs now) const {
  Version newest = committed_;
  for (const Report* report : present_reports(now)) {
    if (report->highest_commit.incarnation() == life_->incarnation) newest = std::max(newest, report->highest_commit);
  }
  return newest;
}

void Root::settle_storage(TimeMs now, Effects& effects) {
  if (arrangement_.places.empty()) return;
  const Version committed = newest_known_commit(now);
  // Before a new root has heard the nodes that are there, all of them seem to have lost their copies.
  const bool has_heard = missing_members(now).empty() || now - elected_at_ > config_.node_timeout_ms;
  if (!committed || !has_heard) return;
  storing_.settle_writes({committed, life_->decision.version, is_short(committed), life_->world_size, restored_,
                          arrangement_.places, inventory_},
                         now, effects);
}

// ---- Directives ----

void Root::send_directives(TimeMs now, Effects& effects) {
  for (auto& [node, peer] : peers_) {
    if (now - peer.heard_at > config_.node_timeout_ms) continue;
    Directive directive = directive_for(peer, now);
    directive.sequence = peer.last_directive.sequence;  // for the comparison
    if (directive == peer.last_directive && !peer.answer_due) continue;
    directive.sequence = ++directive_sequence_;
    peer.last_directive = directive;
    peer.answer_due = false;
    effects.push_back(Send{node, std::move(directive)});
  }
}

Directive Root::directive_for(const Peer& peer, TimeMs now) const {
  const NodeId node = peer.report.node;
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
  directive.write = storing_.order_for(node);
  directive.stored = storing_.stored();
  directive.stored_skipped = storing_.skipped();
  directive.storage_trouble = config_.storage ? storing_.trouble() : storage_trouble(now);
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
  if (life_->decision.verdict == Verdict::undecided) {
    for (Rank rank = 0; rank < life_->world_size; ++rank) {
      const auto bound = bindings_.find(rank);
      if (bound == bindings_.end() || !bound->second.rank.waiting) directive.missing_ranks.push_back(rank);
    }
    directive.missing_nodes = missing_members(now);
    return directive;
  }
  for (const auto& [shard, place] : arrangement_.places) {
    if (contains(place.holders, node)) directive.wanted.push_back(shard);
  }
  directive.copies_now = copies_now();
  if (peer.report.epoch != epoch_) return directive;  // what it has is not known yet
  // A node that replaced a member waits for the life in which it gets a rank.
  if (!contains(life_->members, Member{node, peer.report.arena_id})) return directive;
  const Version base = std::max(committed_, life_->decision.version);
  if (life_->decision.version && base == life_->decision.version) add_reads(node, directive);
  if (base) add_fetches(node, base, directive);
  for (const auto& [version, pieces] : inventory_) {
    if (version <= base || version.incarnation() != life_->incarnation || contains(abandoned_, version)) continue;
    add_fetches(node, version, directive);
  }
  return directive;
}

// What no node has of the version to be restored is read from storage: by one node, from which the others then get it.
void Root::add_reads(NodeId node, Directive& directive) const {
  const Version version = life_->decision.version;
  const auto pieces = inventory_.find(version);
  for (const auto& [shard, piece] : storing_.pieces_of(version)) {
    const auto place = restored_.find(shard);
    if (place == restored_.end() || place->second.holders.front() != node) continue;
    if (pieces != inventory_.end() && pieces->second.contains(shard)) continue;
    directive.fetches.push_back({*piece, {storage_node}});
  }
}

// A version that is to be restored goes to all who restore from it; one that is committed to whoever must hold it and
// has lost it; one on its way there to those who do not capture it themselves.
void Root::add_fetches(NodeId node, Version version, Directive& directive) const {
  const auto pieces = inventory_.find(version);
  if (pieces == inventory_.end()) return;
  const bool is_restored = version == life_->decision.version;
  for (const auto& [shard, place] : places_of(version)) {
    const bool has_it_soon = version > committed_ && contains(place.capturers, node);
    const bool should_have = is_restored ? contains(place.holders, node) || contains(place.owners, node)
                                         : contains(place.holders, node) && !has_it_soon;
    const auto holders = pieces->second.find(shard);
    if (!should_have || holders == pieces->second.end() || has(node, shard, version)) continue;
    FetchOrder order;
    order.piece = *holders->second.front().piece;
    for (const NodeId preferred : place.capturers) {
      if (has(preferred, shard, version)) order.sources.push_back(preferred);
    }
    for (const Holder& holder : holders->second) add_once(order.sources, holder.node);
    directive.fetches.push_back(std::move(order));
  }
}

}  // namespace ckpt::protocol
