// I1-I4: judges what a leader decides and tells, by what it could have known at that time.
//
// A leader waits node_wait_ms for nodes that do not answer. So it must know the pieces of every node that nothing has
// kept from reporting for a while. If the leader has not yet listened for node_wait_ms without a pause of its own, it
// must wait for all nodes that are not lost, so it must know their pieces, too. A pause of the leader is no excuse.
#include <algorithm>

#include "sim/invariants.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {

// A message reaches a leader within this time if nothing hinders it: a few reports, an election, and a slow message.
constexpr TimeMs known_after_ms = 3500;
// A node that woke up this long after a leader did may be heard a little later.
constexpr TimeMs wake_up_ms = 300;

}  // namespace

// ---- What a leader could have known ----

Invariants::Nodes Invariants::reachable_from(const Machine& leader) const {
  const TimeMs since = world_.event_queue.now() - known_after_ms;
  Nodes reachable;
  if (leader.listens_since > since) return reachable;
  for (const auto& [id, machine] : world_.machines) {
    if (world_.is_reachable_from(machine, leader, since)) reachable.insert(id);
  }
  return reachable;
}

Invariants::Nodes Invariants::awaited_by(const Machine& leader) const {
  const TimeMs listened_ms = world_.event_queue.now() - leader.listens_since;
  if (listened_ms >= world_.settings.core.node_wait_ms - world_.pause_ms()) return reachable_from(leader);
  Nodes living;
  for (const auto& [id, machine] : world_.machines) {
    if (!machine.is_lost) living.insert(id);
  }
  return living;
}

// True if all members of the last incarnation are among these nodes, and have the memory that they had then.
bool Invariants::is_witnessed(const std::vector<Member>& members, const Nodes& among) const {
  return !members.empty() && std::all_of(members.begin(), members.end(), [&](const Member& member) {
    return among.contains(member.node) && world_.machines.at(member.node).arena.id == member.arena_id;
  });
}

// True if all members of the last incarnation have lost the memory that they had then, and that is some time ago.
bool Invariants::is_unwitnessed(const std::vector<Member>& members) const {
  const TimeMs since = world_.event_queue.now() - known_after_ms;
  return !members.empty() && std::all_of(members.begin(), members.end(), [&](const Member& member) {
    const Machine& machine = world_.machines.at(member.node);
    return machine.arena.id != member.arena_id && machine.memory_since <= since;
  });
}

// ---- Decisions ----

std::optional<Violation> Invariants::judge(const Machine& leader, const IncarnationRecord& record) const {
  const IncarnationRecord& before = world_.store.incarnation_record().record;
  // The leader may write an earlier decision again if the store lost it.
  if (history_.decision(record.incarnation) != nullptr || record.decision.verdict == Verdict::undecided)
    return std::nullopt;
  const std::string what =
      text("node ", leader.id, " decides ", describe(record.decision), " for incarnation ", record.incarnation);
  if (auto found = judge_loss(leader, before, record, what)) return found;
  if (auto found = judge_doubt(leader, before, record.decision, what)) return found;
  const Nodes reachable = reachable_from(leader);
  if (record.decision.verdict == Verdict::restore && is_disputed(record.decision.checkpoint, before, &reachable)) {
    return Violation{
        "I1",
        text(what, " although ranks that share a shard captured different bytes of it, and nodes still have both")};
  }
  return std::nullopt;
}

// The shards of a checkpoint that `world_size` ranks need to restore it.
const History::Shards& Invariants::needed(CheckpointId checkpoint, const IncarnationRecord& before,
                                          Rank world_size) const {
  Rank own = history_.world_size(checkpoint);
  if (before.restored == checkpoint && before.restored_ranks != 0) own = std::min(own, before.restored_ranks);
  return history_.shards(checkpoint, world_.settings.resizes ? own : std::min(own, world_size));
}

// If a main shard was not cut, another number of ranks cannot see from the pieces whether there were other main shards.
// Only the rank assignments of the last incarnation show that.
bool Invariants::may_be_a_fraction(CheckpointId checkpoint, const IncarnationRecord& before, Rank world_size) const {
  const Rank captured_by = history_.world_size(checkpoint);
  const bool is_as_now =
      captured_by == world_size && !world_.launcher.has_resplit() &&
      needed(checkpoint, before, world_size).size() == history_.shards(checkpoint, world_size).size();
  // If ranks take over shards, the rank assignments name only the shards of that incarnation, and of what it restored.
  const bool names_all = !world_.settings.resizes || checkpoint == before.restored ||
                         checkpoint.incarnation() == before.assignments.incarnation;
  const bool is_known = names_all && before.assignments.count != 0 &&
                        world_.store.assignment_table(before.assignments).name() == before.assignments;
  if (world_.settings.resizes) return !is_as_now && !is_known;
  return !is_as_now && !is_known && world_.settings.parts(0, captured_by) != captured_by;
}

// One rank cannot take over any number of shards.
bool Invariants::is_too_much(CheckpointId checkpoint, Rank world_size) const {
  const Rank captured_by = history_.world_size(checkpoint);
  const Rank most = (captured_by + world_size - 1) / world_size;
  return world_.settings.resizes && captured_by != world_size && 2 * most > core::taken_shards_max;
}

// Judges a decision that gives state up: whether that state exists.
std::optional<Violation> Invariants::judge_loss(const Machine& leader, const IncarnationRecord& before,
                                                const IncarnationRecord& record, const std::string& what) const {
  const Decision& decision = record.decision;
  const auto can_go_on_from = [&](CheckpointId checkpoint, const Nodes& among) {
    return !may_be_a_fraction(checkpoint, before, record.world_size) && !is_too_much(checkpoint, record.world_size) &&
           is_there(checkpoint, needed(checkpoint, before, record.world_size), &among);
  };
  const Nodes reachable = reachable_from(leader);
  const Nodes awaited = awaited_by(leader);
  const CheckpointId reported = history_.newest_reported();
  if (decision.checkpoint < reported && can_go_on_from(reported, awaited)) {
    return Violation{"I2", text(what, " although ", describe(reported),
                                " was reported as committed and the nodes still have all of it")};
  }
  if (decision.verdict != Verdict::restore) {
    // A leader can be certain that the job starts anew before it has heard every node. It can be certain that state is
    // lost only after that.
    const Nodes& among = decision.verdict == Verdict::lost ? awaited : reachable;
    for (const CheckpointId whole : history_.complete_checkpoints()) {
      if (history_.ranks_disagree(whole) || !can_go_on_from(whole, among)) continue;
      return Violation{"I2", text(what, " although the nodes have all of ", describe(whole))};
    }
  }
  // What ranks froze at, or left behind, counts like any other checkpoint: the newest that is whole is restored. A
  // leader need not wait for nodes that can only have state which was not committed.
  for (const CheckpointId whole : history_.complete_checkpoints()) {
    if (whole.incarnation() != before.assignments.incarnation || whole <= decision.checkpoint) continue;
    if (decision.verdict != Verdict::restore || history_.ranks_disagree(whole) || history_.is_void(whole)) continue;
    if (can_go_on_from(whole, reachable))
      return Violation{"I11", text(what, " although all of ", describe(whole), " is there")};
  }
  const bool has_listened = world_.event_queue.now() - leader.listens_since >= known_after_ms;
  const bool storage_tells = world_.settings.core.storage && world_.storage.is_calm(known_after_ms) && has_listened;
  if (const CheckpointId stored = world_.storage.newest_sound(known_after_ms);
      storage_tells && decision.checkpoint < stored && !may_be_a_fraction(stored, before, record.world_size) &&
      !is_too_much(stored, record.world_size)) {
    return Violation{"I2", text(what, " although storage has all of the newer ", describe(stored))};
  }
  return std::nullopt;
}

// Judges whether the decision says that a newer commit may exist. It must say so if and only if that is in doubt.
std::optional<Violation> Invariants::judge_doubt(const Machine& leader, const IncarnationRecord& before,
                                                 const Decision& decision, const std::string& what) const {
  const bool gives_state = decision.verdict == Verdict::restore;
  const auto before_it = world_.store.assignment_table(before.assignments);
  CheckpointId on_record;
  for (const NodeId node : reachable_from(leader))
    on_record = std::max(on_record, world_.machines.at(node).arena.highest_commit);
  if (gives_state && !decision.behind && decision.checkpoint < on_record) {
    return Violation{"I3", text(what, " without 'behind', although a node that answers knows that the newer ",
                                describe(on_record), " was committed")};
  }
  const bool flagged = decision.behind || decision.status_unknown;
  const bool has_listened = world_.event_queue.now() - leader.listens_since >= known_after_ms;
  if (gives_state && !flagged && has_listened && is_unwitnessed(before_it.members())) {
    return Violation{"I3", text(what,
                                " without 'status-unknown', although no node is left that could know what the last "
                                "incarnation committed")};
  }
  const Decision* last = history_.decision(before.assignments.incarnation);
  const bool is_below_last = last != nullptr && decision.checkpoint < last->checkpoint;
  if (decision.status_unknown && !is_below_last && is_witnessed(before_it.members(), awaited_by(leader))) {
    return Violation{"I3", what + ", although every node that could know of a newer commit answers"};
  }
  return std::nullopt;
}

// Judges a decision by the truth alone, whether the leader could know it or not.
void Invariants::check_decision(const IncarnationRecord& before, const IncarnationRecord& now) {
  const Decision& decision = now.decision;
  const CheckpointId checkpoint = decision.checkpoint;
  const CheckpointId committed = history_.newest_committed();
  const std::string what = text("incarnation ", now.incarnation, " decides ", describe(decision));
  const bool gives_state = decision.verdict == Verdict::restore;
  const bool flagged = decision.behind || decision.status_unknown;
  // A committed checkpoint was whole once, even if nodes have dropped pieces of it since.
  const auto& shards = needed(checkpoint, before, now.world_size);
  const bool was_whole = history_.scarcest(checkpoint, shards).copies > 0 || history_.was_damaged(checkpoint) ||
                         history_.was_committed(checkpoint);
  if (gives_state && !was_whole && !world_.storage.has_step(checkpoint) && !is_there(checkpoint, shards, nullptr)) {
    throw Violation{"I1", what + ", a checkpoint of which no node ever had some shard completely"};
  }
  if (decision.verdict != Verdict::lost && checkpoint < committed && !flagged) {
    throw Violation{"I3", text(what, " with neither 'behind' nor 'status-unknown', although the newer ",
                               describe(committed), " was committed")};
  }
  if (gives_state && checkpoint < newest_forgotten_ && !flagged) {
    throw Violation{"I3", text(what, " with neither 'behind' nor 'status-unknown', although the newer ",
                               describe(newest_forgotten_), " was committed, which nobody remembers any more")};
  }
  newest_forgotten_ = {};
  if (decision.behind && history_.newest_committed_ever() <= checkpoint) {
    throw Violation{"I3", what + ", although nothing newer was ever committed"};
  }
  // Nodes that are gone may have known whether the last restart began from a commit.
  const Decision* last = history_.decision(before.assignments.incarnation);
  if (gives_state && last != nullptr && checkpoint < last->checkpoint && !flagged) {
    throw Violation{"I3", text(what, " with neither 'behind' nor 'status-unknown', although incarnation ",
                               before.assignments.incarnation, " went on from the newer ", describe(last->checkpoint))};
  }
  if (decision.verdict == Verdict::lost && !history_.newest_committed_ever()) {
    throw Violation{"I3", what + ", although nothing was ever committed that could be lost"};
  }
  if (decision.verdict == Verdict::mismatch && !world_.settings.resizes &&
      (!world_.settings.elastic || world_.store.assignment_table(before.assignments).name() == before.assignments)) {
    throw Violation{
        "I3", what + ", which refuses this number of ranks, although all ranks are known to share one main shard"};
  }
  const Rank own = history_.own_ranks(checkpoint);
  const Rank expected = world_.settings.resizes ? own : std::min(own, now.world_size);
  if (gives_state && now.restored_ranks != expected) {
    throw Violation{"I1",
                    text(what, " with the private shards of ", now.restored_ranks, " ranks instead of ", expected)};
  }

  const auto assignment_table = world_.store.assignment_table(now.assignments);
  Decision with_cuts = decision;
  with_cuts.cuts = assignment_table.cuts();
  tally_.decided_elastic += gives_state && history_.world_size(checkpoint) != now.world_size;
  History::Shards main_shards;
  for (const RankAssignment& each : assignment_table.assignments()) main_shards.push_back(each.main_shard);
  history_.decided(now.incarnation, with_cuts, now.world_size, now.restored_ranks, main_shards);
  tally_.decided_resplit += gives_state && history_.world_size(checkpoint) == now.world_size &&
                            history_.takes_over(now.incarnation, checkpoint);
  for (const Member& member : assignment_table.members()) history_.hosted(now.incarnation, member.node);
  tally_.decided_fresh += decision.verdict == Verdict::fresh;
  tally_.decided_restore += gives_state;
  tally_.decided_lost += decision.verdict == Verdict::lost;
  tally_.decided_behind += decision.behind;
  tally_.decided_unknown += decision.status_unknown;
}

// A leader may end restores only if nodes and storage no longer have all of the decided checkpoint.
void Invariants::stranding(const Machine& leader, const Directive& directive) {
  const std::pair on_record(directive.epoch, directive.incarnation);
  if (directive.stranded.empty()) {
    stranded_.erase(on_record);
    return;
  }
  const Decision* decision = history_.decision(directive.incarnation);
  if (!stranded_.insert(on_record).second || decision == nullptr || decision->verdict != Verdict::restore) return;
  const Nodes awaited = awaited_by(leader);
  if (is_there(decision->checkpoint, history_.shards(decision->checkpoint), &awaited)) {
    throw Violation{"I2", text("node ", leader.id, " ends the restores under way (", directive.stranded,
                               ") although the nodes have all of ", describe(decision->checkpoint))};
  }
}

// ---- Members ----

// News about members is for the operator. A node that runs and can be heard is not lost.
void Invariants::member_notified(const Machine& leader, const MemberChanged& changed) {
  const TimeMs now = world_.event_queue.now();
  const Machine& machine = world_.machines.at(changed.node);
  // The node's last message may have been under way for long.
  if (changed.change == Change::returned && machine.is_lost && machine.memory_since <= world_.news_of_before())
    throw Violation{"I6",
                    text("node ", leader.id, " says that node ", machine.id, " is back, although that node is lost")};
  if (changed.change != Change::lost) return;
  ++tally_.notified_lost;
  // The leader itself may not know yet what was just decided.
  const IncarnationRecord& on_record = world_.store.incarnation_record().record;
  const NodeStatus knows = leader.agent->node().status();
  const bool is_decided = knows.decision.verdict != Verdict::undecided;
  const bool goes_by_it = knows.incarnation > on_record.assignments.incarnation ||
                          (knows.incarnation == on_record.assignments.incarnation && is_decided);
  const auto assignment_table = goes_by_it ? world_.store.assignment_table(on_record.assignments) : assignments_before_;
  if (!assignment_table.is_member(machine.id, machine.arena.id)) return;  // also if it came back without its memory
  // A leader must conclude nothing from a pause of its own. So it must have listened for a while.
  const TimeMs since = std::min(now, std::max(now - known_after_ms, leader.listens_since + wake_up_ms));
  if (world_.is_reachable_from(machine, leader, since)) {
    throw Violation{"I6",
                    text("node ", leader.id, " says that node ", machine.id,
                         " is lost, although that node lives and could be heard for the last ", now - since, " ms")};
  }
}

// ---- The store ----

// A node asks for its leader's record to be written. The store may carry that out later, when the node knows more.
void Invariants::writing_leader(const Machine& machine, const LeaderRecord& record) {
  if (record.epoch < machine.arena.epoch) {
    throw Violation{"I4", text("node ", machine.id, " asks to be leader with ", describe_epoch(record.epoch),
                               " although it obeys the newer ", describe_epoch(machine.arena.epoch))};
  }
  epochs_asked_at_[record.epoch] = world_.event_queue.now();
}

void Invariants::leader_written(NodeId by, const LeaderRecordRead& now) {
  const LeaderRecord& record = now.record;
  const auto [holder, is_first] = epoch_holders_.try_emplace(record.epoch, by);
  const bool is_election = record.heartbeat == 0;
  if (holder->second != by || (is_first && !is_election)) {
    throw Violation{"I4", text("node ", by, " is leader with ", describe_epoch(record.epoch),
                               ", with which another node (", holder->second, ") or no node at all was elected")};
  }
  // An epoch may be lower than an earlier one if the store lost the leader's record. There are three cases. The earlier
  // leader was elected and never took charge, so perhaps nobody knows of it, and it did nothing. Or the node asked
  // before it could know of a leader that had just taken charge: with its lower epoch it never takes charge. Or a
  // leader with an older record continues until it hears of a newer one, because revisions come a second time.
  const bool is_unknown =
      record.epoch < newest_epoch_led_ && epochs_asked_at_[record.epoch] - newest_epoch_led_since_ < known_after_ms;
  const bool is_newer = record.epoch > (leader_record_spoiled_ ? newest_epoch_led_ : leader_record_.epoch);
  const bool is_right = is_election ? is_newer || (leader_record_spoiled_ && is_unknown)
                                    : record.epoch >= leader_record_.epoch || leader_record_spoiled_;
  if (!is_right) {
    throw Violation{"I4", text("node ", by, " is leader with ", describe_epoch(record.epoch),
                               " although the record already has ", describe_epoch(leader_record_.epoch))};
  }
  tally_.elections += is_election;
  leader_record_ = record;
}

void Invariants::incarnation_written(NodeId by, const IncarnationRecordRead& before, const IncarnationRecordRead& now,
                                     const Asked& asked) {
  world_.trace.line(world_.event_queue.now(), [&] { return text("store: by ", by, " ", describe(Event{now})); });
  const IncarnationRecord& old = before.record;
  const IncarnationRecord& record = now.record;
  const bool is_older = record.epoch < old.epoch || record.incarnation < old.incarnation;
  // The leader asked for this swap before the store was set back. The store then had the expected revision a second
  // time, so the swap sets the store back once more.
  if (is_older && incarnation_record_spoiled_at_ && asked.at <= *incarnation_record_spoiled_at_)
    return incarnation_record_spoiled();
  if (is_older || record.incarnation > newest_decided_ + 1) {
    throw Violation{
        "I4", text("node ", by,
                   " writes an incarnation record that is older than the present one, or that skips an incarnation")};
  }
  if (record.incarnation != old.incarnation) incarnation_opened(record.incarnation);
  if (record.incarnation != old.incarnation && !incarnation_record_spoiled_)
    world_.halt_check.incarnation_ends(world_.machines.at(by), old.incarnation, asked.at);
  if (record.assignments != old.assignments) assignments_before_ = world_.store.assignment_table(old.assignments);
  newest_decided_ = std::max(newest_decided_, record.incarnation);
  if (record.incarnation == newest_decided_) newest_incarnation_read_at_ = world_.event_queue.now();
  if (record.epoch > newest_epoch_led_) {
    newest_epoch_led_ = record.epoch;
    newest_epoch_led_since_ = world_.event_queue.now();
  }
  const Decision* decided = history_.decision(record.incarnation);
  const bool was_decided = decided != nullptr;
  const bool says_so = record.decision.verdict != Verdict::undecided;  // false if the store lost the decision
  if (was_decided && says_so && !is_same(record.decision, *decided)) {
    throw Violation{"I4", text("node ", by, " changes the decision of incarnation ", record.incarnation, " from ",
                               describe(*decided), " to ", describe(record.decision))};
  }
  if (record.first_commit < old.first_commit) {
    throw Violation{"I3", text("node ", by, " writes an incarnation record that forgets the commit of ",
                               describe(old.first_commit))};
  }
  const auto assignment_table = world_.store.assignment_table(record.assignments);
  // Rank assignments of an earlier incarnation may be missing. A node that writes again what the store lost may not
  // know that a later incarnation has removed them. It leads no incarnation before it has read its assignments.
  const bool is_followed = history_.decision(record.assignments.incarnation) != nullptr &&
                           history_.incarnation() > record.assignments.incarnation;
  if (assignment_table.name() != record.assignments && record.assignments != old.assignments && !is_followed) {
    throw Violation{"I2",
                    text("node ", by, " writes an incarnation record whose rank assignments are not all in the store")};
  }
  if (!was_decided && record.decision.verdict != Verdict::undecided) {
    if (asked.judgement) throw *asked.judgement;
    check_decision(old, record);
    committed(world_.machines.at(by), record.base);
  }
  if (assignment_table.name() == record.assignments) check_replacements(by, old, record, assignment_table);
  // A checkpoint that an incarnation restores counts as committed once the record says so. A leader that reads the
  // record relies on that.
  if (was_decided && record.base == record.decision.checkpoint && record.base != old.base) {
    committed(world_.machines.at(by), record.base);
  }
}

// A lost member has one replacement, which is not a member. Otherwise pieces of a lost node that comes back could mix
// with those of another node.
void Invariants::check_replacements(NodeId by, const IncarnationRecord& old, const IncarnationRecord& record,
                                    const core::AssignmentTable& assignment_table) {
  std::set<NodeId> members, lost, replacing;
  for (const core::Member& member : assignment_table.members()) members.insert(member.node);
  for (const core::Replacement& each : record.replacements) {
    if (std::find(old.replacements.begin(), old.replacements.end(), each) == old.replacements.end()) ++tally_.replaced;
    if (members.contains(each.lost) && !assignment_table.is_member(each.by.node, each.by.arena_id) &&
        lost.insert(each.lost).second && replacing.insert(each.by.node).second)
      continue;
    throw Violation{"I4",
                    text("node ", by, " makes node ", each.by.node, " the replacement of node ", each.lost,
                         ". A lost member must have one replacement, which is no member and replaces nobody else")};
  }
}

}  // namespace ckpt::sim
