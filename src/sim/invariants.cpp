// I1-I4: what becomes of versions.
#include "sim/invariants.hpp"

#include <algorithm>
#include <tuple>

#include "sim/message_contents.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

using namespace protocol;

void Tally::add(const Tally& other) {
  commits += other.commits;
  restores += other.restores;
  from_peer += other.from_peer;
  decoded += other.decoded;
  stood_in += other.stood_in;
  from_storage += other.from_storage;
  stored += other.stored;
  decided_fresh += other.decided_fresh;
  decided_restore += other.decided_restore;
  decided_lost += other.decided_lost;
  decided_behind += other.decided_behind;
  decided_unknown += other.decided_unknown;
  elections += other.elections;
  alarms += other.alarms;
  quarantined += other.quarantined;
  restarts += other.restarts;
  given_up += other.given_up;
  relayed += other.relayed;
  told_lost += other.told_lost;
  slowest_commit_ms = std::max(slowest_commit_ms, other.slowest_commit_ms);
  slowest_recovery_ms = std::max(slowest_recovery_ms, other.slowest_recovery_ms);
}

Invariants::Invariants(World& world) : world_(world), history_(world.settings.shards()) {}

void Invariants::forget_everything() {
  history_ = History(world_.settings.shards());
  newest_whole_ = {};
  root_record_ = {};
  newest_life_ = newest_epoch_led_ = newest_decided_told_ = 0;
  root_record_spoiled_ = life_record_spoiled_ = false;
  newest_forgotten_ = {};
  epoch_holders_.clear();
  epochs_asked_at_.clear();
  stranded_.clear();
  heard_.clear();
  restored_digests_.clear();
  reports_.clear();
}

std::size_t Invariants::copies_wanted(std::uint64_t incarnation) const {
  return std::min<std::size_t>(world_.settings.core.protection.copies,
                               std::max<std::size_t>(1, history_.hosts(incarnation).size()));
}

Invariants::Whole Invariants::whole_pieces(Version version, const Nodes* among) const {
  Whole whole;
  for (auto& [id, machine] : world_.machines) {
    if (among != nullptr && !among->contains(id)) continue;
    machine.arena.for_each([&, node = id](const SlotRef&, const Slot& slot) {
      if (slot.counted && slot.intact() && slot.header.version == version) whole[slot.header.shard][node] = &slot;
    });
  }
  return whole;
}

bool Invariants::is_whole(Version version, std::size_t copies) const {
  const Whole whole = whole_pieces(version, nullptr);
  const auto shards = world_.settings.shards();
  return std::all_of(shards.begin(), shards.end(), [&](const std::string& shard) {
    const auto found = whole.find(shard);
    return found != whole.end() && found->second.size() >= copies;
  });
}

// Nodes that took no part in the life, and contradict one that did; stand-ins, where they contradict a member.
std::set<NodeId> Invariants::contradicting(const Whole& whole, const LifeRecord& life) const {
  const auto seating = world_.store.seating(life.seats);
  const auto distance = [&](NodeId node) {
    const Member who{node, world_.machines.at(node).arena.id};
    if (seating.is_member(who.node, who.arena_id)) return 0;
    return std::any_of(life.stand_ins.begin(), life.stand_ins.end(), [&](const auto& each) { return each.by == who; })
               ? 1
               : 2;
  };
  std::map<std::string, std::set<std::tuple<int, NodeId, std::uint64_t>>> claims;  // by captured shard, members first
  for (const auto& [name, nodes] : whole) {
    for (const auto& [node, slot] : nodes) {
      if (!slot->header.is_parity()) claims[name].insert({distance(node), node, slot->header.root_digest});
      for (const auto& made_of : slot->header.recipe.ingredients)
        claims[made_of.shard].insert({distance(node), node, made_of.root_digest});
    }
  }
  std::set<NodeId> found;
  for (const auto& [shard, said] : claims) {
    for (const auto& [near, who, digest] : said) {
      for (const auto& [far, other, other_digest] : said)
        if (near < far && digest != other_digest) found.insert(other);
    }
  }
  return found;
}

bool Invariants::is_disputed(Version version, const LifeRecord& life, const Nodes* among) const {
  const auto left_out = contradicting(whole_pieces(version, nullptr), life);
  const Whole whole = whole_pieces(version, among);
  const auto shards = world_.settings.shards();
  return std::any_of(shards.begin(), shards.end(), [&](const std::string& shard) {
    const auto found = whole.find(shard);
    if (found == whole.end()) return false;
    std::set<std::uint64_t> digests;
    for (const auto& [node, slot] : found->second)
      if (!left_out.contains(node)) digests.insert(slot->header.root_digest);
    return digests.size() > 1;
  });
}

bool Invariants::wants_parity(std::uint64_t incarnation) const {
  return world_.settings.core.protection.has_parity() && history_.hosts(incarnation).size() > 1;
}

// Counted by members, not by what the core would do: a member lacks something where its shard or its parity does.
std::set<std::string> Invariants::covered(Version version, bool may_lack, const Nodes* among) const {
  const Whole whole = whole_pieces(version, among);
  std::map<std::string, std::map<std::uint32_t, const Slot*>> groups;
  for (const auto& [shard, nodes] : whole) {
    const Slot& slot = *nodes.begin()->second;
    if (slot.header.is_parity()) groups[parse_part(shard).shard][slot.header.recipe.member] = &slot;
  }
  std::set<std::string> covered;
  for (const auto& [name, parity] : groups) {
    const Recipe& recipe = parity.begin()->second->header.recipe;
    std::size_t lacking = 0;
    for (std::uint32_t member = 0; member < recipe.ingredients.size(); ++member) {
      const std::string& shard = recipe.ingredients[member].shard;
      lacking += !parity.contains(member) || (!shard.empty() && !whole.contains(shard));
    }
    if (lacking > (may_lack ? recipe.rows : 0)) continue;
    for (const auto& ingredient : recipe.ingredients) covered.insert(ingredient.shard);
  }
  return covered;
}

bool Invariants::is_there(Version version, const Nodes* among) const {
  const Whole whole = whole_pieces(version, among);
  const auto decodable = covered(version, true, among);
  const auto shards = world_.settings.shards();
  return std::all_of(shards.begin(), shards.end(),
                     [&](const auto& shard) { return whole.contains(shard) || decodable.contains(shard); });
}

bool Invariants::awaits_commit() const {
  return newest_whole_.incarnation() == history_.incarnation() && newest_whole_ > history_.newest_reported();
}

// ---- Pieces and commits ----

void Invariants::counted(const Machine& machine, const PieceInfo& piece) {
  history_.gained(machine.id, piece);
  const std::uint64_t incarnation = history_.incarnation();
  const bool is_protected = !wants_parity(incarnation) || history_.unprotected(piece.version).empty();
  if (piece.version.incarnation() == incarnation && is_protected &&
      history_.copies(piece.version) >= copies_wanted(incarnation)) {
    newest_whole_ = std::max(newest_whole_, piece.version);
  }
}

// The first anybody hears of a commit.
void Invariants::committed(const Machine& machine, Version version) {
  if (version <= history_.newest_committed()) return;
  if (history_.is_void(version)) {
    throw Violation{"I4", text("node ", machine.id, " commits ", describe(version), ", which a later life has voided")};
  }
  // One of a life that came back, at a version beyond it: what it was when it was made it need not be now.
  const Decision* life = history_.decision(history_.incarnation());
  if (history_.was_committed(version) && life != nullptr && version < life->version) return history_.committed(version);
  // What a life restored it must place anew.
  const Decision* decision = history_.decision(history_.incarnation());
  const bool is_restored = decision != nullptr && decision->version == version;
  const std::size_t wanted = copies_wanted(is_restored ? history_.incarnation() : version.incarnation());
  const TimeMs known_until = world_.news_of_before();
  // Or, where it was a commit before and comes from storage, go by that meanwhile.
  const bool is_stored = is_restored && world_.storage.has_step(version);
  if (const auto [copies, shard] = history_.scarcest(version, known_until); copies < wanted && !is_stored) {
    throw Violation{"I2", text("node ", machine.id, " commits ", describe(version), " while shard ", shard, " has ",
                               copies, " of ", wanted, " copies")};
  }
  const std::uint64_t placed_by = is_restored ? history_.incarnation() : version.incarnation();
  if (const std::string shard = history_.unprotected(version, known_until);
      wants_parity(placed_by) && !shard.empty() && !is_stored) {
    throw Violation{"I2", text("node ", machine.id, " commits ", describe(version), " while the parity of shard ",
                               shard, " is not whole")};
  }
  // What its own life commits, all ranks have captured, and all were compared. What another one goes on from it may
  // have been before that: then whoever captured something else may be lost, and nothing left tells.
  const Nodes heard = heard_by(machine);
  if (is_restored ? is_disputed(version, world_.store.life().record, &heard) : history_.ranks_disagree(version)) {
    throw Violation{"I1", text("node ", machine.id, " commits ", describe(version),
                               " although ranks that share a shard captured different bytes")};
  }
  tally_.commits += !is_restored;
  history_.committed(version);
}

void Invariants::sending(const Machine& machine, const Message& message) {
  for (const Report* report : reports_in(message)) check_passed_on(machine, *report);
  if (const auto* directive = std::get_if<Directive>(&message)) directed(machine, *directive);
  const auto* dealt = std::get_if<Dealt>(&message);
  if (dealt == nullptr) return;
  for (const Dealt::Item& item : dealt->items) {
    if (item.directive.root == machine.id) directed(machine, item.directive);  // else it is passed on
  }
}

// Whoever passes a report on says nothing of its own.
void Invariants::check_passed_on(const Machine& machine, const Report& report) {
  const std::pair key(report.agent_id, report.sequence);
  if (report.node == machine.id) {
    reports_.try_emplace(key, report);
    return;
  }
  ++tally_.relayed;
  const auto sent = reports_.find(key);
  if (sent == reports_.end() || !(sent->second == report)) {
    throw Violation{"I4", text("node ", machine.id, " passes on a report of node ", report.node,
                               " that is not what that node said")};
  }
}

void Invariants::directed(const Machine& root, const Directive& directive) {
  committed(root, directive.committed);
  stranding(root, directive);
  if (directive.alarm.empty()) return;
  tally_.alarms = 1;
  if (!history_.ranks_ever_disagreed()) {
    throw Violation{"I1", text("node ", root.id, " says '", directive.alarm, "' although all ranks captured the same")};
  }
}

void Invariants::persisting(const Machine& machine, const Persist& persist) {
  const Arena& arena = machine.arena;
  if (persist.highest_commit < arena.highest_commit || persist.newest_seen < arena.newest_seen ||
      persist.epoch < arena.epoch) {
    throw Violation{"I4", text("node ", machine.id, " writes an older commit, version or epoch over a newer one")};
  }
}

// Storage may have been cleared since, but the version has been there, whole.
void Invariants::stored_told(const Machine& machine, Rank rank, Version version) const {
  if (world_.storage.has_had_step(version)) return;
  throw Violation{"I2", text("rank ", rank, " on node ", machine.id, " is told that ", describe(version),
                             " is on storage, where it never was whole")};
}

void Invariants::commit_told(const Machine& machine, Rank rank, Version version) {
  if (history_.is_void(version)) {
    throw Violation{"I4", text("rank ", rank, " on node ", machine.id, " is told that ", describe(version),
                               " is committed, which a later life has voided")};
  }
  committed(machine, version);
  // A commit that is not on record when its node loses its head was never heard of.
  if (machine.arena.highest_commit < version) {
    throw Violation{"I3", text("rank ", rank, " on node ", machine.id, " is told that ", describe(version),
                               " is committed before the node has put that on record")};
  }
  history_.reported(version);
}

// What is on storage is restored without asking whether it was a commit.
void Invariants::storing(const Machine& root, const CommitStep& step) {
  ++tally_.stored;
  if (step.version > history_.newest_committed_ever()) {
    throw Violation{"I3", text("node ", root.id, " makes ", describe(step.version),
                               " whole on storage, which was never committed")};
  }
}

// ---- Restores ----

// A node is told how main shards are cut for its own ranks only.
bool Invariants::is_same(const Decision& told, const Decision& decided) {
  Decision all = told;
  all.cuts = decided.cuts;
  return all == decided && std::all_of(told.cuts.begin(), told.cuts.end(), [&](const Cut& cut) {
           return std::find(decided.cuts.begin(), decided.cuts.end(), cut) != decided.cuts.end();
         });
}

void Invariants::restore_offered(const Machine& machine, std::uint64_t instance, const RestoreReady& ready) {
  const Trainer* trainer = world_.trainer(instance);
  const Decision* decision = history_.decision(ready.incarnation);
  if (decision == nullptr || !is_same(ready.decision, *decision)) {
    throw Violation{"I1", text("rank ", ready.rank, " on node ", machine.id, " is offered ", describe(ready.decision),
                               ", which is not what was decided for life ", ready.incarnation)};
  }
  if (ready.decision.verdict != Verdict::restore || trainer == nullptr) return;
  const auto check = [&](const SlotRef& ref, const std::string& shard) {
    const Slot* slot = machine.arena.find(ref);
    if (slot == nullptr || !slot->counted || slot->header.shard != shard ||
        slot->header.version != ready.decision.version) {
      throw Violation{"I1", text("rank ", ready.rank, " is offered slot ", describe(ref), " of node ", machine.id,
                                 ", which does not hold ", shard, " at ", describe(ready.decision.version))};
    }
  };
  const auto parts = parts_of(world_.settings.main_shard(ready.rank), world_.settings.parts(ready.rank));
  if (ready.main.size() != parts.size()) {
    throw Violation{"I1", text("rank ", ready.rank, " on node ", machine.id, " is offered ", ready.main.size(), " of ",
                               parts.size(), " parts")};
  }
  for (std::size_t i = 0; i < parts.size(); ++i) check(ready.main[i].slot, parts[i]);
  check(ready.private_.slot, world_.settings.private_shard(ready.rank));
}

void Invariants::restore_refused(const RestoreFailed& failed) const {
  if (failed.text.empty()) throw Violation{"I6", text("restore of rank ", failed.rank, " fails without saying why")};
}

// Its patience is at an end although nothing went wrong for as long. That is an answer only where another rank is
// amiss.
void Invariants::restore_hangs(const Trainer& trainer) {
  if (trainer.launch != world_.launcher.launch()) return;
  for (Trainer* each : world_.launcher.trainers()) {
    if (!each->has_asked() || each->is_fenced()) return;
  }
  throw Violation{"I6", text("restore of rank ", trainer.rank, " on node ", trainer.node,
                             " neither ends nor fails, although every rank has asked for it")};
}

void Invariants::restored(const Trainer& trainer, const RestoreReady& ready) {
  ++tally_.restores;
  if (!history_.hosts(ready.incarnation).contains(trainer.node)) {
    throw Violation{"I4", text("rank ", trainer.rank, " joins life ", ready.incarnation, " on node ", trainer.node,
                               ", which is not one of its nodes")};
  }
  if (ready.decision.verdict != Verdict::restore) return;
  std::vector<Source> sources = ready.main;
  sources.push_back(ready.private_);
  tally_.from_peer +=
      std::any_of(sources.begin(), sources.end(), [](const Source& each) { return each.tier == Tier::peer; });
  tally_.decoded +=
      std::any_of(sources.begin(), sources.end(), [](const Source& each) { return each.tier == Tier::decoded; });
  tally_.from_storage +=
      std::any_of(sources.begin(), sources.end(), [](const Source& each) { return each.tier == Tier::persistent; });
  const Version version = ready.decision.version;
  const auto check = [&](const std::string& shard, std::uint64_t digest) {
    const auto& digests = history_.digests(version, shard);
    if (!digests.contains(digest)) {
      throw Violation{"I1", text("rank ", trainer.rank, " restores bytes of ", shard, " that nobody captured at ",
                                 describe(version))};
    }
    const auto [first, is_first] = restored_digests_.try_emplace({ready.incarnation, shard}, digest);
    if (first->second != digest) {
      throw Violation{"I1", text("rank ", trainer.rank, " restores other bytes of ", shard, " than a rank before it")};
    }
  };
  const Machine& machine = world_.machines.at(trainer.node);
  for (const Source& source : sources) {
    const Slot& slot = *machine.arena.find(source.slot);
    check(slot.header.shard, slot.bytes);
  }
}

// ---- Stale messages ----

namespace {

const Directive* stale_directive(const Machine& machine, const Event& event) {
  const auto* arrived = std::get_if<MessageArrived>(&event);
  if (arrived == nullptr) return nullptr;
  for (const Directive* directive : directives_for(machine.id, arrived->message)) {
    if (directive->epoch < machine.arena.epoch) return directive;
  }
  return nullptr;
}

}  // namespace

void Invariants::before(const Machine& machine, const Node& node, const Event& event) {
  if (stale_directive(machine, event) != nullptr) stale_before_ = node.status();
}

void Invariants::after(const Machine& machine, const Node& node, const Event& event) {
  if (stale_directive(machine, event) != nullptr && !stale_before_.is_root) {
    const NodeStatus now = node.status();
    if (now.epoch != stale_before_.epoch || now.incarnation != stale_before_.incarnation ||
        !(now.decision == stale_before_.decision) || now.committed != stale_before_.committed ||
        now.resume_at != stale_before_.resume_at) {
      throw Violation{"I4", text("node ", machine.id, " obeys a root of an older epoch")};
    }
  }
  const auto* arrived = std::get_if<MessageArrived>(&event);
  if (arrived == nullptr) return;
  for (const Report* report : reports_in(arrived->message)) {
    if (report->node == machine.id) continue;  // what it tells itself now does not arrive
    std::uint64_t& heard = heard_[{machine.id, report->node}];
    heard = std::max(heard, report->epoch);
    if (report->epoch < machine.arena.epoch) check_is_not_counted(machine, node, *report);
  }
}

void Invariants::check_is_not_counted(const Machine& machine, const Node& node, const Report& report) const {
  const NodeStatus now = node.status();
  const bool counted =
      std::find(now.nodes_present.begin(), now.nodes_present.end(), report.node) != now.nodes_present.end();
  if (now.is_root && counted && heard_.at({machine.id, report.node}) < now.epoch) {
    throw Violation{"I4", text("root ", machine.id, " of ", describe_epoch(now.epoch), " counts a report of ",
                               describe_epoch(report.epoch), " by node ", report.node)};
  }
}

}  // namespace ckpt::sim
