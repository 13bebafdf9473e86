// I1-I4: what a root decides and tells, judged by what it could have known when it did.
//
// A root waits for whoever does not answer for node_wait_ms. So it could have known what lies on every node of which
// nothing was in the way for a while; and where it has not listened for so long without a pause of its own, then on
// every node that is not lost: it had to wait. Its own trouble excuses nothing.
#include <algorithm>

#include "sim/invariants.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

using namespace protocol;

namespace {

// What is said reaches a root within so long, where nothing is in the way: a few reports, an election, and a message
// that takes long.
constexpr TimeMs known_after_ms = 3500;
// Who came to itself so long after a root did may be heard a little later.
constexpr TimeMs wake_up_ms = 300;

}  // namespace

// ---- What a root could have known ----

Invariants::Nodes Invariants::heard_by(const Machine& root) const {
  const TimeMs since = world_.timeline.now() - known_after_ms;
  Nodes heard;
  if (root.listens_since > since) return heard;
  for (const auto& [id, machine] : world_.machines) {
    if (world_.could_be_heard(machine, root, since)) heard.insert(id);
  }
  return heard;
}

Invariants::Nodes Invariants::awaited_by(const Machine& root) const {
  const TimeMs listened_ms = world_.timeline.now() - root.listens_since;
  if (listened_ms >= world_.settings.core.node_wait_ms - world_.pause_ms()) return heard_by(root);
  Nodes living;
  for (const auto& [id, machine] : world_.machines) {
    if (!machine.is_lost) living.insert(id);
  }
  return living;
}

// The nodes that the last life named are all among these, with the memory that they had.
bool Invariants::is_witnessed(const std::vector<Member>& members, const Nodes& among) const {
  return !members.empty() && std::all_of(members.begin(), members.end(), [&](const Member& member) {
    return among.contains(member.node) && world_.machines.at(member.node).arena.id == member.arena_id;
  });
}

// The nodes that the last life named have all lost the memory that they had, some time ago.
bool Invariants::is_unwitnessed(const std::vector<Member>& members) const {
  const TimeMs since = world_.timeline.now() - known_after_ms;
  return !members.empty() && std::all_of(members.begin(), members.end(), [&](const Member& member) {
    const Machine& machine = world_.machines.at(member.node);
    return machine.arena.id != member.arena_id && machine.memory_since <= since;
  });
}

// ---- Decisions ----

std::optional<Violation> Invariants::judge(const Machine& root, const LifeRecord& record) const {
  const LifeRecord& before = world_.store.life().record;
  // What was decided before it may write again, where the store lost it.
  if (history_.decision(record.incarnation) != nullptr || record.decision.verdict == Verdict::undecided)
    return std::nullopt;
  const std::string what =
      text("node ", root.id, " decides ", describe(record.decision), " for life ", record.incarnation);
  if (auto found = judge_loss(root, record.decision, what)) return found;
  if (auto found = judge_doubt(root, before, record.decision, what)) return found;
  const Nodes heard = heard_by(root);
  if (record.decision.verdict == Verdict::restore && is_disputed(record.decision.version, before, &heard)) {
    return Violation{"I1",
                     text(what, " although ranks that share a shard captured different bytes, and both are there")};
  }
  return std::nullopt;
}

// Whether it gives up what is there.
std::optional<Violation> Invariants::judge_loss(const Machine& root, const Decision& decision,
                                                const std::string& what) const {
  const Nodes heard = heard_by(root);
  const Nodes awaited = awaited_by(root);
  const Version reported = history_.newest_reported();
  if (decision.version < reported && is_there(reported, &awaited)) {
    return Violation{"I2", text(what, " although ", describe(reported), " was reported committed and is still there")};
  }
  if (decision.verdict != Verdict::restore) {
    // That a job starts anew may be certain before everybody is heard, that its state is lost never is.
    const Nodes& among = decision.verdict == Verdict::lost ? awaited : heard;
    for (const Version whole : history_.whole_versions()) {
      if (history_.ranks_disagree(whole) || !is_there(whole, &among)) continue;
      return Violation{"I2", text(what, " although all of ", describe(whole), " is there")};
    }
  }
  const bool has_listened = world_.timeline.now() - root.listens_since >= known_after_ms;
  const bool storage_tells = world_.settings.core.storage && world_.storage.is_calm(known_after_ms) && has_listened;
  if (const Version stored = world_.storage.newest_sound(known_after_ms); storage_tells && decision.version < stored) {
    return Violation{"I2", text(what, " although all of ", describe(stored), " is on storage")};
  }
  return std::nullopt;
}

// Whether it says what it should of a commit that may be newer, and only that.
std::optional<Violation> Invariants::judge_doubt(const Machine& root, const LifeRecord& before,
                                                 const Decision& decision, const std::string& what) const {
  const bool gives_state = decision.verdict == Verdict::restore;
  const auto before_it = world_.store.seating(before.seats);
  Version on_record;
  for (const NodeId node : heard_by(root))
    on_record = std::max(on_record, world_.machines.at(node).arena.highest_commit);
  if (gives_state && !decision.behind && decision.version < on_record) {
    return Violation{"I3",
                     text(what, " although a node has it on record that ", describe(on_record), " was committed")};
  }
  const bool flagged = decision.behind || decision.status_unknown;
  const bool has_listened = world_.timeline.now() - root.listens_since >= known_after_ms;
  if (gives_state && !flagged && has_listened && is_unwitnessed(before_it.members())) {
    return Violation{"I3", text(what, " although no node of the last life is left to tell what it committed")};
  }
  const Decision* last = history_.decision(before.seats.life);
  const bool is_below_last = last != nullptr && decision.version < last->version;
  if (decision.status_unknown && !is_below_last && is_witnessed(before_it.members(), awaited_by(root))) {
    return Violation{"I3", what + ", but every node that could know of a newer commit answers"};
  }
  return std::nullopt;
}

// By the truth alone, whoever knows of it.
void Invariants::check_decision(const LifeRecord& before, const LifeRecord& now) {
  const Decision& decision = now.decision;
  const Version version = decision.version;
  const Version committed = history_.newest_committed();
  const std::string what = text("life ", now.incarnation, " decides ", describe(decision));
  const bool gives_state = decision.verdict == Verdict::restore;
  const bool flagged = decision.behind || decision.status_unknown;
  // What was committed was whole, whoever has dropped it since.
  const bool was_whole =
      history_.was_whole(version) || history_.was_damaged(version) || history_.was_committed(version);
  if (gives_state && !was_whole && !world_.storage.has_step(version) && !is_there(version, nullptr)) {
    throw Violation{"I1", what + ", a version of which some shard was never whole"};
  }
  if (decision.verdict != Verdict::lost && version < committed && !flagged) {
    throw Violation{"I3", text(what, " without saying that ", describe(committed), " was committed")};
  }
  if (gives_state && version < newest_forgotten_ && !flagged) {
    throw Violation{"I3", text(what, " as if nothing newer could have been committed, and nobody is left to know")};
  }
  newest_forgotten_ = {};
  if (decision.behind && history_.newest_committed_ever() <= version) {
    throw Violation{"I3", what + ", but nothing newer was ever committed"};
  }
  // Whether what the last life went on from was a commit, those may have known who were gone by then.
  const Decision* last = history_.decision(before.seats.life);
  if (gives_state && last != nullptr && version < last->version && !flagged) {
    throw Violation{"I3", text(what, " without a word about ", describe(last->version), ", from which life ",
                               before.seats.life, " went on")};
  }
  if (decision.verdict == Verdict::lost && !history_.newest_committed_ever()) {
    throw Violation{"I3", what + ", but nothing was ever committed"};
  }
  if (decision.verdict == Verdict::mismatch) throw Violation{"I3", what + ", but the world never changed its size"};

  const auto seating = world_.store.seating(now.seats);
  Decision with_cuts = decision;
  with_cuts.cuts = seating.cuts();
  history_.decided(now.incarnation, with_cuts);
  for (const Member& member : seating.members()) history_.hosted(now.incarnation, member.node);
  tally_.decided_fresh += decision.verdict == Verdict::fresh;
  tally_.decided_restore += gives_state;
  tally_.decided_lost += decision.verdict == Verdict::lost;
  tally_.decided_behind += decision.behind;
  tally_.decided_unknown += decision.status_unknown;
}

// That what was decided cannot be brought home any more ends the restores that wait for it.
void Invariants::stranding(const Machine& root, const Directive& directive) {
  const std::pair life(directive.epoch, directive.incarnation);
  if (directive.stranded.empty()) {
    stranded_.erase(life);
    return;
  }
  const Decision* decision = history_.decision(directive.incarnation);
  if (!stranded_.insert(life).second || decision == nullptr || decision->verdict != Verdict::restore) return;
  const Nodes awaited = awaited_by(root);
  if (is_there(decision->version, &awaited)) {
    throw Violation{"I2", text("node ", root.id, " says that restores are stranded (", directive.stranded,
                               ") although all of ", describe(decision->version), " is there")};
  }
}

// ---- Members ----

// News about members is for whoever runs the machines: a node that lives and could be heard is not lost.
void Invariants::member_told(const Machine& root, const MemberChanged& changed) {
  const TimeMs now = world_.timeline.now();
  const Machine& machine = world_.machines.at(changed.node);
  // What it said last may have been on the way for long.
  if (changed.change == Change::returned && machine.is_lost && machine.memory_since <= world_.news_of_before())
    throw Violation{"I6", text("node ", root.id, " says that node ", machine.id, " is back, which is lost")};
  if (changed.change != Change::lost) return;
  ++tally_.told_lost;
  // What was just decided its root may not have heard itself.
  const LifeRecord& life = world_.store.life().record;
  const NodeStatus knows = root.agent->node().status();
  const bool is_decided = knows.decision.verdict != Verdict::undecided;
  const bool goes_by_it = knows.incarnation > life.seats.life || (knows.incarnation == life.seats.life && is_decided);
  const auto seating = goes_by_it ? world_.store.seating(life.seats) : seating_before_;
  if (!seating.is_member(machine.id, machine.arena.id)) return;  // or came back without its memory
  // As long as the root has listened, for it must not conclude anything from its own pause.
  const TimeMs since = std::min(now, std::max(now - known_after_ms, root.listens_since + wake_up_ms));
  if (world_.could_be_heard(machine, root, since)) {
    throw Violation{"I6", text("node ", root.id, " says that node ", machine.id,
                               " is lost, which lives and could be heard for ", now - since, " ms")};
  }
}

// ---- The store ----

// What is asked for now may be carried out when its root knows better.
void Invariants::writing_root(const Machine& machine, const RootRecord& record) {
  if (record.epoch < machine.arena.epoch) {
    throw Violation{"I4", text("node ", machine.id, " wants to be root with ", describe_epoch(record.epoch),
                               " although it obeys ", describe_epoch(machine.arena.epoch))};
  }
  epochs_asked_at_[record.epoch] = world_.timeline.now();
}

void Invariants::root_written(NodeId by, const RootRead& now) {
  const RootRecord& record = now.record;
  const auto [holder, is_first] = epoch_holders_.try_emplace(record.epoch, by);
  const bool is_election = record.beat == 0;
  if (holder->second != by || (is_first && !is_election)) {
    throw Violation{"I4", text("node ", by, " is root with ", describe_epoch(record.epoch), ", which is node ",
                               holder->second, "'s, or nobody's")};
  }
  // Where the store lost the record, nobody may know of one that was elected and never took charge: then it did
  // nothing. Nor may whoever asked have known then of one that had just taken charge: elected with less it never takes
  // charge. And who leads by an older record may go on until it hears of a newer one, since revisions come a second
  // time.
  const bool is_unknown =
      record.epoch < newest_epoch_led_ && epochs_asked_at_[record.epoch] - newest_epoch_led_since_ < known_after_ms;
  const bool is_newer = record.epoch > (root_record_spoiled_ ? newest_epoch_led_ : root_record_.epoch);
  const bool is_right = is_election ? is_newer || (root_record_spoiled_ && is_unknown)
                                    : record.epoch >= root_record_.epoch || root_record_spoiled_;
  if (!is_right) {
    throw Violation{"I4", text("node ", by, " becomes root with ", describe_epoch(record.epoch), " after ",
                               describe_epoch(root_record_.epoch))};
  }
  tally_.elections += is_election;
  root_record_ = record;
}

void Invariants::life_written(NodeId by, const LifeRead& before, const LifeRead& now, const Asked& asked) {
  world_.trace.line(world_.timeline.now(), [&] { return text("store: by ", by, " ", describe(Event{now})); });
  const LifeRecord& old = before.record;
  const LifeRecord& record = now.record;
  const bool is_older = record.epoch < old.epoch || record.incarnation < old.incarnation;
  // On its way since before the store was set back, it met its revision for the second time, and sets the store back
  // once more.
  if (is_older && life_record_spoiled_at_ && asked.at <= *life_record_spoiled_at_) return life_record_spoiled();
  if (is_older || record.incarnation > newest_life_ + 1) {
    throw Violation{"I4", text("node ", by, " of an older epoch or life writes the life record")};
  }
  if (record.incarnation != old.incarnation) life_opened(record.incarnation);
  if (record.seats != old.seats) seating_before_ = world_.store.seating(old.seats);
  newest_life_ = std::max(newest_life_, record.incarnation);
  if (record.incarnation == newest_life_) newest_life_told_at_ = world_.timeline.now();
  if (record.epoch > newest_epoch_led_) {
    newest_epoch_led_ = record.epoch;
    newest_epoch_led_since_ = world_.timeline.now();
  }
  const Decision* decided = history_.decision(record.incarnation);
  const bool was_decided = decided != nullptr;
  const bool says_so = record.decision.verdict != Verdict::undecided;  // not where the store lost that
  if (was_decided && says_so && !is_same(record.decision, *decided)) {
    throw Violation{"I4", text("node ", by, " changes the decision of life ", record.incarnation, " from ",
                               describe(*decided), " to ", describe(record.decision))};
  }
  if (record.first_commit < old.first_commit) {
    throw Violation{"I3", text("node ", by, " forgets that ", describe(old.first_commit), " was committed")};
  }
  const auto seating = world_.store.seating(record.seats);
  // Those of an earlier life may have been lost since. Whoever writes again what the store lost may have heard of none
  // of the lives after that, for which its seats were removed: it leads none before it has read them.
  const bool is_followed =
      history_.decision(record.seats.life) != nullptr && history_.incarnation() > record.seats.life;
  if (seating.name() != record.seats && record.seats != old.seats && !is_followed) {
    throw Violation{"I2", text("node ", by, " writes a life record whose seats are not all in the store")};
  }
  if (!was_decided && record.decision.verdict != Verdict::undecided) {
    if (asked.judgement) throw *asked.judgement;
    check_decision(old, record);
    committed(world_.machines.at(by), record.base);
  }
  if (seating.name() == record.seats) check_stand_ins(by, old, record, seating);
  // A restored version is committed with its place on record: a root that reads it there goes by it.
  if (was_decided && record.base == record.decision.version && record.base != old.base) {
    committed(world_.machines.at(by), record.base);
  }
}

// One for a member each, and never a member: what a lost node comes back with is not to be mixed with it.
void Invariants::check_stand_ins(NodeId by, const LifeRecord& old, const LifeRecord& record,
                                 const protocol::Seating& seating) {
  std::set<NodeId> members, lost, standing_in;
  for (const protocol::Member& member : seating.members()) members.insert(member.node);
  for (const protocol::StandIn& each : record.stand_ins) {
    if (std::find(old.stand_ins.begin(), old.stand_ins.end(), each) == old.stand_ins.end()) ++tally_.stood_in;
    if (members.contains(each.lost) && !seating.is_member(each.by.node, each.by.arena_id) &&
        lost.insert(each.lost).second && standing_in.insert(each.by.node).second)
      continue;
    throw Violation{"I4", text("node ", by, " puts node ", each.by.node, " into the place of node ", each.lost)};
  }
}

}  // namespace ckpt::sim
