// I1-I4: what happens to checkpoints.
#include "sim/invariants.hpp"

#include <algorithm>
#include <tuple>

#include "sim/message_contents.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

void Tally::add(const Tally& other) {
  commits += other.commits;
  restores += other.restores;
  from_peer += other.from_peer;
  decoded += other.decoded;
  replaced += other.replaced;
  from_storage += other.from_storage;
  stored += other.stored;
  decided_fresh += other.decided_fresh;
  decided_restore += other.decided_restore;
  decided_lost += other.decided_lost;
  decided_behind += other.decided_behind;
  decided_unknown += other.decided_unknown;
  decided_elastic += other.decided_elastic;
  decided_resplit += other.decided_resplit;
  elections += other.elections;
  alarms += other.alarms;
  quarantined += other.quarantined;
  restarts += other.restarts;
  given_up += other.given_up;
  relayed += other.relayed;
  notified_lost += other.notified_lost;
  named += other.named;
  halts += other.halts;
  late_captures += other.late_captures;
  late_restores += other.late_restores;
  rejoined += other.rejoined;
  kept += other.kept;
  started_anew += other.started_anew;
  repeated += other.repeated;
  repeated_in_vain += other.repeated_in_vain;
  not_repeated += other.not_repeated;
  slowest_commit_ms = std::max(slowest_commit_ms, other.slowest_commit_ms);
  slowest_recovery_ms = std::max(slowest_recovery_ms, other.slowest_recovery_ms);
}

Invariants::Invariants(World& world) : world_(world), history_(world.settings) {}

void Invariants::forget_everything() {
  history_ = History(world_.settings);
  newest_whole_ = {};
  leader_record_ = {};
  newest_decided_ = newest_epoch_led_ = newest_decided_read_ = 0;
  leader_record_spoiled_ = incarnation_record_spoiled_ = false;
  newest_forgotten_ = {};
  epoch_holders_.clear();
  epochs_asked_at_.clear();
  stranded_.clear();
  received_epochs_.clear();
  restored_digests_.clear();
  reports_.clear();
}

std::size_t Invariants::copies_wanted(std::uint64_t incarnation) const {
  return std::min<std::size_t>(world_.settings.core.protection.copies,
                               std::max<std::size_t>(1, history_.hosts(incarnation).size()));
}

Invariants::Whole Invariants::whole_pieces(CheckpointId checkpoint, const Nodes* among) const {
  Whole whole;
  for (auto& [id, machine] : world_.machines) {
    if (among != nullptr && !among->contains(id)) continue;
    machine.arena.for_each([&, node = id](const SlotRef&, const Slot& slot) {
      if (slot.counted && slot.intact() && slot.header.checkpoint == checkpoint) whole[slot.header.shard][node] = &slot;
    });
  }
  return whole;
}

bool Invariants::is_whole(CheckpointId checkpoint, std::size_t copies) const {
  const Whole whole = whole_pieces(checkpoint, nullptr);
  const auto& shards = history_.shards(checkpoint);
  return std::all_of(shards.begin(), shards.end(), [&](const std::string& shard) {
    const auto found = whole.find(shard);
    return found != whole.end() && found->second.size() >= copies;
  });
}

// Returns the nodes that took no part in the incarnation and contradict a node that did, and the replacements that
// contradict a member.
std::set<NodeId> Invariants::contradicting(const Whole& whole, const IncarnationRecord& incarnation_record) const {
  const auto assignment_table = world_.store.assignment_table(incarnation_record.assignments);
  const auto distance = [&](NodeId node) {
    const Member who{node, world_.machines.at(node).arena.id};
    if (assignment_table.is_member(who.node, who.arena_id)) return 0;
    return std::any_of(incarnation_record.replacements.begin(), incarnation_record.replacements.end(),
                       [&](const auto& each) { return each.by == who; })
               ? 1
               : 2;
  };
  // [shard]: the digests that nodes have of it. Members come first, because the first number is smallest for them.
  std::map<std::string, std::set<std::tuple<int, NodeId, std::uint64_t>>> claims;
  for (const auto& [name, nodes] : whole) {
    for (const auto& [node, slot] : nodes) {
      if (!slot->header.is_parity()) claims[name].insert({distance(node), node, slot->header.root_digest});
      for (const auto& made_of : slot->header.parity_manifest.sources)
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

bool Invariants::is_disputed(CheckpointId checkpoint, const IncarnationRecord& incarnation_record,
                             const Nodes* among) const {
  const auto left_out = contradicting(whole_pieces(checkpoint, nullptr), incarnation_record);
  const Whole whole = whole_pieces(checkpoint, among);
  const auto& shards = history_.shards(checkpoint);
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

// Counts members of a group, however the core counts them: a member is lacking if its shard or its parity is missing.
std::set<std::string> Invariants::covered(CheckpointId checkpoint, bool may_lack, const Nodes* among) const {
  const Whole whole = whole_pieces(checkpoint, among);
  std::map<std::string, std::map<std::uint32_t, const Slot*>> groups;
  for (const auto& [shard, nodes] : whole) {
    const Slot& slot = *nodes.begin()->second;
    if (slot.header.is_parity()) groups[parse_part(shard).shard][slot.header.parity_manifest.member] = &slot;
  }
  std::set<std::string> covered;
  for (const auto& [name, parity] : groups) {
    const ParityManifest& parity_manifest = parity.begin()->second->header.parity_manifest;
    std::size_t lacking = 0;
    for (std::uint32_t member = 0; member < parity_manifest.sources.size(); ++member) {
      const std::string& shard = parity_manifest.sources[member].shard;
      lacking += !parity.contains(member) || (!shard.empty() && !whole.contains(shard));
    }
    if (lacking > (may_lack ? parity_manifest.rows : 0)) continue;
    for (const auto& parity_source : parity_manifest.sources) covered.insert(parity_source.shard);
  }
  return covered;
}

bool Invariants::is_there(CheckpointId checkpoint, const History::Shards& shards, const Nodes* among) const {
  const Whole whole = whole_pieces(checkpoint, among);
  const auto decodable = covered(checkpoint, true, among);
  return std::all_of(shards.begin(), shards.end(),
                     [&](const auto& shard) { return whole.contains(shard) || decodable.contains(shard); });
}

// If another number of ranks captured the checkpoint, its main shard has other parts. All nodes that restore these must
// have them whole.
const History::Shards& Invariants::with_parity(CheckpointId checkpoint) const {
  static const History::Shards none;
  const Rank now = history_.world_size(history_.incarnation());
  const Rank then = history_.world_size(checkpoint);
  const bool is_cut_otherwise = world_.settings.parts(0, then) != world_.settings.parts(0, now);
  const bool is_elsewhere =
      (world_.settings.elastic && is_cut_otherwise) || history_.takes_over(history_.incarnation(), checkpoint);
  return is_elsewhere ? none : history_.shards(checkpoint);
}

bool Invariants::awaits_commit() const {
  return newest_whole_.incarnation() == history_.incarnation() && newest_whole_ > history_.newest_reported();
}

// ---- Pieces and commits ----

void Invariants::counted(const Machine& machine, const PieceInfo& piece) {
  history_.gained(machine.id, piece);
  const std::uint64_t incarnation = history_.incarnation();
  const bool is_protected =
      !wants_parity(incarnation) || history_.unprotected(piece.checkpoint, history_.shards(piece.checkpoint)).empty();
  if (piece.checkpoint.incarnation() == incarnation && is_protected &&
      history_.copies(piece.checkpoint) >= copies_wanted(incarnation)) {
    newest_whole_ = std::max(newest_whole_, piece.checkpoint);
  }
}

// Called when the first node learns of a commit.
void Invariants::committed(const Machine& machine, CheckpointId checkpoint) {
  if (checkpoint <= history_.newest_committed()) return;
  if (history_.is_void(checkpoint)) {
    throw Violation{
        "I4", text("node ", machine.id, " commits ", describe(checkpoint), ", which a later incarnation has voided")};
  }
  // The commit is older than the checkpoint that the present incarnation restored. It was whole when it was made, and
  // need not be whole now.
  const Decision* incarnation_record = history_.decision(history_.incarnation());
  if (history_.was_committed(checkpoint) && incarnation_record != nullptr &&
      checkpoint < incarnation_record->checkpoint)
    return history_.committed(checkpoint);
  // An incarnation must make all copies of the checkpoint that it restored.
  const Decision* decision = history_.decision(history_.incarnation());
  const bool is_restored = decision != nullptr && decision->checkpoint == checkpoint;
  const std::size_t wanted = copies_wanted(is_restored ? history_.incarnation() : checkpoint.incarnation());
  const TimeMs known_until = world_.news_of_before();
  // A commit that was restored from storage counts even before its copies are made.
  const bool is_stored = is_restored && world_.storage.has_step(checkpoint);
  if (const auto [copies, shard] = history_.scarcest(checkpoint, history_.shards(checkpoint), known_until);
      copies < wanted && !is_stored) {
    throw Violation{"I2", text("node ", machine.id, " commits ", describe(checkpoint), " while shard ", shard, " has ",
                               copies, " of ", wanted, " copies")};
  }
  const std::uint64_t placed_by = is_restored ? history_.incarnation() : checkpoint.incarnation();
  if (const std::string shard = history_.unprotected(checkpoint, with_parity(checkpoint), known_until);
      wants_parity(placed_by) && !shard.empty() && !is_stored) {
    throw Violation{"I2", text("node ", machine.id, " commits ", describe(checkpoint), " while the parity of shard ",
                               shard, " is not whole")};
  }
  // If an incarnation commits a checkpoint of its own, all ranks have captured it, and the leader has compared all
  // captures. A checkpoint of an earlier incarnation may have been restored before that. Then the ranks that captured
  // other bytes may be lost, and no remaining piece shows that.
  const Nodes reachable = reachable_from(machine);
  if (is_restored ? is_disputed(checkpoint, world_.store.incarnation_record().record, &reachable)
                  : history_.ranks_disagree(checkpoint)) {
    throw Violation{"I1", text("node ", machine.id, " commits ", describe(checkpoint),
                               " although ranks that share a shard captured different bytes")};
  }
  tally_.commits += !is_restored;
  history_.committed(checkpoint);
}

void Invariants::sending(const Machine& machine, const Message& message) {
  for (const Report* report : reports_in(message)) check_passed_on(machine, *report);
  if (const auto* directive = std::get_if<Directive>(&message)) {
    directed(machine, *directive);
    if (directive->leader == machine.id) world_.watch_check.told(machine, *directive);
    if (directive->leader == machine.id) world_.halt_check.told(machine, *directive);
  }
  const auto* directive_batch = std::get_if<DirectiveBatch>(&message);
  if (directive_batch == nullptr) return;
  for (const DirectiveBatch::Item& item : directive_batch->items) {
    if (item.directive.leader != machine.id) continue;  // it only passes the batch on
    directed(machine, item.directive);
    world_.watch_check.told(machine, item.directive);
    world_.halt_check.told(machine, item.directive);
  }
}

// Each report in a relay's batch must be one that the named node has sent. A relay never puts its own report there.
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

void Invariants::directed(const Machine& leader, const Directive& directive) {
  committed(leader, directive.committed);
  stranding(leader, directive);
  if (directive.alarm.empty()) return;
  tally_.alarms = 1;
  if (!history_.ranks_ever_disagreed()) {
    throw Violation{"I1",
                    text("node ", leader.id, " says '", directive.alarm, "' although all ranks captured the same")};
  }
}

void Invariants::persisting(const Machine& machine, const Persist& persist) {
  const Arena& arena = machine.arena;
  if (persist.highest_commit < arena.highest_commit || persist.newest_seen < arena.newest_seen ||
      persist.epoch < arena.epoch) {
    throw Violation{"I4", text("node ", machine.id, " writes an older commit, checkpoint or epoch over a newer one")};
  }
  // If the leader has the only rank, it tells no other node of a commit. So this is the first that shows of it.
  if (persist.highest_commit > arena.highest_commit && !history_.is_void(persist.highest_commit))
    committed(machine, persist.highest_commit);
}

// The whole checkpoint must have been on storage. It need not be there now, because storage may have been cleared.
void Invariants::stored_notified(const Machine& machine, Rank rank, CheckpointId checkpoint) const {
  if (world_.storage.has_had_step(checkpoint)) return;
  throw Violation{"I2", text("rank ", rank, " on node ", machine.id, " is told that ", describe(checkpoint),
                             " is on storage, where it never was whole")};
}

void Invariants::commit_notified(const Machine& machine, Rank rank, CheckpointId checkpoint) {
  if (history_.is_void(checkpoint)) {
    throw Violation{"I4", text("rank ", rank, " on node ", machine.id, " is told that ", describe(checkpoint),
                               " is committed, which a later incarnation has voided")};
  }
  committed(machine, checkpoint);
  // If a node loses its memory before it has recorded a commit, nobody ever knew of that commit.
  if (machine.arena.highest_commit < checkpoint) {
    throw Violation{"I3", text("rank ", rank, " on node ", machine.id, " is told that ", describe(checkpoint),
                               " is committed before the node has put that on record")};
  }
  history_.reported(checkpoint);
}

// A checkpoint on storage is restored without asking whether it was committed. So only a committed one may be
// completed.
void Invariants::storing(const Machine& leader, const FinalizeCheckpoint& step) {
  ++tally_.stored;
  if (step.checkpoint > history_.newest_committed_ever()) {
    throw Violation{"I3", text("node ", leader.id, " makes ", describe(step.checkpoint),
                               " whole on storage, which was never committed")};
  }
}

// ---- Restores ----

// Compares decisions without the cuts that the node need not know: a node learns only those of its own ranks.
bool Invariants::is_same(const Decision& notified, const Decision& decided) {
  Decision all = notified;
  all.cuts = decided.cuts;
  return all == decided && std::all_of(notified.cuts.begin(), notified.cuts.end(), [&](const Cut& cut) {
           return std::find(decided.cuts.begin(), decided.cuts.end(), cut) != decided.cuts.end();
         });
}

void Invariants::restore_offered(const Machine& machine, std::uint64_t instance, const RestoreReady& ready) {
  const Trainer* trainer = world_.trainer(instance);
  const Decision* decision = history_.decision(ready.incarnation);
  if (decision == nullptr || !is_same(ready.decision, *decision)) {
    throw Violation{"I1", text("rank ", ready.rank, " on node ", machine.id, " is offered ", describe(ready.decision),
                               ", which is not what was decided for incarnation ", ready.incarnation)};
  }
  if (ready.decision.verdict != Verdict::restore || trainer == nullptr) return;
  const auto check = [&](const SlotRef& ref, const std::string& shard) {
    const Slot* slot = machine.arena.find(ref);
    if (slot == nullptr || !slot->counted || slot->header.shard != shard ||
        slot->header.checkpoint != ready.decision.checkpoint) {
      throw Violation{"I1", text("rank ", ready.rank, " is offered slot ", describe(ref), " of node ", machine.id,
                                 ", which does not hold ", shard, " at ", describe(ready.decision.checkpoint))};
    }
  };
  const CheckpointId checkpoint = ready.decision.checkpoint;
  const Rank then = history_.world_size(checkpoint), now = history_.world_size(ready.incarnation);
  if (history_.takes_over(ready.incarnation, checkpoint)) {
    const auto expected = world_.settings.taken_by(ready.rank, history_.main_shards(checkpoint.incarnation()), now);
    std::set<std::string> offered;
    const auto offer = [&](const SlotRef& ref) { check(ref, *offered.insert(ref.shard).first); };
    offer(ready.private_.slot);
    for (const RestoreSource& source : ready.taken) offer(source.slot);
    if (offered != expected || !ready.main.empty() ||
        ready.private_.slot.shard != world_.settings.private_shard(ready.rank < then ? ready.rank : 0)) {
      throw Violation{"I1", text("rank ", ready.rank, " on node ", machine.id, " takes over other shards of ",
                                 describe(checkpoint), " than it should, or others first")};
    }
    return;
  }
  const auto parts = parts_of(trainer->main_shard, world_.settings.parts(ready.rank, history_.world_size(checkpoint)));
  if (ready.main.size() != parts.size()) {
    throw Violation{"I1", text("rank ", ready.rank, " on node ", machine.id, " is offered ", ready.main.size(), " of ",
                               parts.size(), " parts")};
  }
  for (std::size_t i = 0; i < parts.size(); ++i) check(ready.main[i].slot, parts[i]);
  const bool has_own = ready.rank < history_.own_ranks(checkpoint);
  check(ready.private_.slot, world_.settings.private_shard(has_own ? ready.rank : 0));
}

void Invariants::restore_refused(const RestoreFailed& failed) const {
  if (failed.text.empty()) throw Violation{"I6", text("restore of rank ", failed.rank, " fails without saying why")};
}

// Nothing was wrong for as long as the wait limit, but a restore has not ended. That is right only if another rank is
// in trouble.
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
    throw Violation{"I4", text("rank ", trainer.rank, " joins incarnation ", ready.incarnation, " on node ",
                               trainer.node, ", which is not one of its nodes")};
  }
  if (ready.decision.verdict != Verdict::restore) return;
  std::vector<RestoreSource> sources = ready.main;
  sources.insert(sources.end(), ready.taken.begin(), ready.taken.end());
  sources.push_back(ready.private_);
  tally_.from_peer +=
      std::any_of(sources.begin(), sources.end(), [](const RestoreSource& each) { return each.tier == Tier::peer; });
  tally_.decoded +=
      std::any_of(sources.begin(), sources.end(), [](const RestoreSource& each) { return each.tier == Tier::decoded; });
  tally_.from_storage += std::any_of(sources.begin(), sources.end(),
                                     [](const RestoreSource& each) { return each.tier == Tier::persistent; });
  const CheckpointId checkpoint = ready.decision.checkpoint;
  const auto check = [&](const std::string& shard, std::uint64_t digest) {
    const auto& digests = history_.digests(checkpoint, shard);
    if (!digests.contains(digest)) {
      throw Violation{"I1", text("rank ", trainer.rank, " restores bytes of ", shard, " that nobody captured at ",
                                 describe(checkpoint))};
    }
    const auto [first, is_first] = restored_digests_.try_emplace({ready.incarnation, shard}, digest);
    if (first->second != digest) {
      throw Violation{"I1", text("rank ", trainer.rank, " restores other bytes of ", shard, " than a rank before it")};
    }
  };
  const Machine& machine = world_.machines.at(trainer.node);
  for (const RestoreSource& source : sources) {
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
  if (stale_directive(machine, event) != nullptr && !stale_before_.is_leader) {
    const NodeStatus now = node.status();
    if (now.epoch != stale_before_.epoch || now.incarnation != stale_before_.incarnation ||
        !(now.decision == stale_before_.decision) || now.committed != stale_before_.committed ||
        now.resume_at != stale_before_.resume_at) {
      throw Violation{"I4", text("node ", machine.id, " obeys a leader of an older epoch")};
    }
  }
  const auto* arrived = std::get_if<MessageArrived>(&event);
  if (arrived == nullptr) return;
  for (const Report* report : reports_in(arrived->message)) {
    if (report->node == machine.id) continue;  // a message to itself does not arrive again
    std::uint64_t& reachable = received_epochs_[{machine.id, report->node}];
    reachable = std::max(reachable, report->epoch);
    if (report->epoch < machine.arena.epoch) check_is_not_counted(machine, node, *report);
  }
}

void Invariants::check_is_not_counted(const Machine& machine, const Node& node, const Report& report) const {
  const NodeStatus now = node.status();
  const bool counted =
      std::find(now.nodes_present.begin(), now.nodes_present.end(), report.node) != now.nodes_present.end();
  if (now.is_leader && counted && received_epochs_.at({machine.id, report.node}) < now.epoch) {
    throw Violation{"I4", text("leader ", machine.id, " of ", describe_epoch(now.epoch), " counts a report of ",
                               describe_epoch(report.epoch), " by node ", report.node)};
  }
}

}  // namespace ckpt::sim
