// Who makes up an incarnation of the job, and from what it goes on.
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "core/leader/leader.hpp"
#include "core/lists.hpp"

namespace ckpt::core {

// ---- Admission ----

void Leader::reconcile_admissions(TimeMs now, Effects& effects) {
  refresh_bindings();
  // Members of this incarnation that a new leader has not met yet come first, then newcomers, then those who wait since
  // an incarnation that was never decided: they are carried over.
  for (const auto& [node, peer] : peers_) {
    if (!is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      if (rank.incarnation != record_->incarnation || rank.incarnation == 0 || superseded_.contains(rank.instance))
        continue;
      if (is_misplaced(peer, rank)) {
        open_incarnation(rank, now, effects);
      } else {
        if (!bindings_.contains(rank.rank)) bindings_.emplace(rank.rank, Binding{node, &peer, rank});
      }
    }
  }
  for (const auto& [node, peer] : peers_) {
    if (!is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      if (rank.incarnation == 0 && !superseded_.contains(rank.instance)) admit_newcomer(peer, rank, now, effects);
    }
  }
  if (record_->decision.verdict != Verdict::undecided) return;
  for (const auto& [node, peer] : peers_) {
    if (!is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      const bool carried = rank.incarnation != 0 && rank.incarnation < record_->incarnation && rank.waiting;
      if (carried && rank.world_size == record_->world_size && !superseded_.contains(rank.instance)) {
        bindings_.try_emplace(rank.rank, Binding{node, &peer, rank});
      }
    }
  }
}

void Leader::refresh_bindings() {
  const bool undecided = record_->decision.verdict == Verdict::undecided;
  for (auto it = bindings_.begin(); it != bindings_.end();) {
    Binding& binding = it->second;
    const Report& report = binding.peer->report;
    const auto entry = std::find_if(report.ranks.begin(), report.ranks.end(), [&](const RankReport& rank) {
      return rank.rank == it->first && rank.instance == binding.rank.instance;
    });
    if (entry != report.ranks.end()) binding.rank = *entry;
    const bool gone = report.epoch == epoch_ && (entry == report.ranks.end() || serves_older_incarnation(*entry));
    // Before the decision a trainer that is gone makes room for the next one; after it the incarnation keeps its shape.
    const bool leaves = undecided ? gone : is_misplaced(*binding.peer, binding.rank);
    it = leaves ? bindings_.erase(it) : std::next(it);
  }
}

// A decision may be written late, when a rank has moved since: its node is then none of the incarnation's. It needs an
// incarnation of its own.
bool Leader::is_misplaced(const Peer& peer, const RankReport& rank) const {
  if (!has_begun()) return false;
  if (rank.rank >= assignment_table_.assignments().size()) return true;
  const RankAssignment& assignment = assignment_table_.assignments()[rank.rank];
  const bool has_its_place = assignment.node == peer.report.node && assignment.main_shard == rank.main_shard &&
                             assignment.private_shard == rank.private_shard;
  return !has_its_place || !assignment_table_.is_member(peer.report.node, peer.report.arena_id);
}

// It was given an older incarnation's checkpoint before it could be carried over into this one.
bool Leader::serves_older_incarnation(const RankReport& rank) const {
  return rank.incarnation != 0 && rank.incarnation < record_->incarnation && !rank.waiting;
}

void Leader::admit_newcomer(const Peer& peer, const RankReport& rank, TimeMs now, Effects& effects) {
  const auto bound = bindings_.find(rank.rank);
  if (bound != bindings_.end() && bound->second.rank.instance == rank.instance) return;
  const bool second_hello = bound != bindings_.end();
  const bool decided = record_->decision.verdict != Verdict::undecided;
  // A job without a record may have checkpoints on storage, and its incarnations must be newer than those.
  if (record_->incarnation == 0 && config_.storage && !storage_.knows_incarnations()) return;
  if (record_->incarnation == 0 || second_hello || decided) {
    open_incarnation(rank, now, effects);
    return;
  }
  if (rank.world_size == record_->world_size) bindings_.emplace(rank.rank, Binding{peer.report.node, &peer, rank});
}

void Leader::open_incarnation(const RankReport& newcomer, TimeMs now, Effects& effects) {
  const auto bound = bindings_.find(newcomer.rank);
  if (bound != bindings_.end() && bound->second.rank.instance != newcomer.instance) {
    superseded_.insert(bound->second.rank.instance);
  }
  open_next_incarnation(newcomer.world_size, now, effects);
}

void Leader::open_next_incarnation(std::uint32_t world_size, TimeMs now, Effects& effects) {
  if (!may_swap_record(now)) return;
  IncarnationRecord next = *record_;
  next.incarnation = std::max({record_->incarnation, newest_written(), newest_served()}) + 1;
  if (next.incarnation > CheckpointId::incarnation_max) {
    alarm_ = "no incarnation of the job can follow incarnation " + std::to_string(record_->incarnation) +
             ": it is the last number there is. Give the job another name";
    return;
  }
  next.world_size = world_size;
  next.decision = {};
  swap_record(std::move(next), now, effects);
}

// The newest incarnation of which anything is known to have been captured. The store says so, unless its records were
// lost or are older ones again: then an incarnation might get a number for the second time, or one below what is to be
// restored.
std::uint64_t Leader::newest_written() const {
  std::uint64_t newest = 0;
  const auto consider = [&](std::uint64_t claimed) {
    if (is_plausible_incarnation(record_->incarnation, claimed)) newest = std::max(newest, claimed);
  };
  for (const auto& [node, peer] : peers_) {
    consider(peer.report.highest_commit.incarnation());
    consider(peer.report.newest_seen.incarnation());
    for (const PieceInfo& piece : peer.report.pieces) consider(piece.checkpoint.incarnation());
  }
  consider(storage_.newest_incarnation());
  return newest;
}

// The newest incarnation that any rank takes part in.
std::uint64_t Leader::newest_served() const {
  std::uint64_t newest = newest_notified();
  for (const auto& [node, peer] : peers_)
    for (const RankReport& rank : peer.report.ranks) {
      if (is_plausible_incarnation(record_->incarnation, rank.incarnation)) newest = std::max(newest, rank.incarnation);
    }
  return newest;
}

// The newest incarnation that was decided, as far as any node was told.
std::uint64_t Leader::newest_notified() const {
  std::uint64_t newest = 0;
  for (const auto& [node, peer] : peers_)
    if (is_plausible_incarnation(record_->incarnation, peer.report.newest_known_incarnation))
      newest = std::max(newest, peer.report.newest_known_incarnation);
  return newest;
}

// The record is older than what nodes know: it was lost or set back, and who led by the newer one is gone. The
// incarnation that it should tell of cannot be led; the next one restores what that has captured.
bool Leader::is_outlived() const {
  const bool was_decided = record_->decision.verdict == Verdict::undecided && record_->incarnation != 0 &&
                           newest_notified() == record_->incarnation;
  return was_decided || newest_served() > record_->incarnation;
}

void Leader::follow_outlived(TimeMs now, Effects& effects) {
  effects.push_back(Notice{"the coordination store lost the record of incarnation " +
                           std::to_string(std::max(record_->incarnation, newest_served())) +
                           " of the job, or has an older one, and no agent that is left knows who took part in it; the "
                           "job goes on with a new incarnation"});
  open_next_incarnation(newest_world_size(), now, effects);
}

// By the record, or, where that is lost, by the ranks; 0 where there are none: then the first of them opens an
// incarnation.
std::uint32_t Leader::newest_world_size() const {
  std::uint32_t world_size = record_->world_size;
  for (const auto& [node, peer] : peers_)
    for (const RankReport& rank : peer.report.ranks) {
      if (world_size == 0) world_size = rank.world_size;
    }
  return world_size;
}

bool Leader::has_begun() const {
  return record_->decision.verdict == Verdict::fresh || record_->decision.verdict == Verdict::restore;
}

bool Leader::is_complete_incarnation() const {
  return record_->incarnation != 0 && bindings_.size() == record_->world_size;
}

std::optional<Refusal> Leader::refusal_of(NodeId node, const RankReport& rank) const {
  const auto bound = bindings_.find(rank.rank);
  const bool is_bound = bound != bindings_.end() && bound->second.rank.instance == rank.instance;
  if (is_bound && !serves_older_incarnation(rank)) return std::nullopt;
  const bool undecided = record_->decision.verdict == Verdict::undecided;
  const bool newcomer = rank.incarnation == 0;
  if (newcomer && undecided && record_->incarnation != 0 && rank.world_size != record_->world_size) {
    return Refusal{rank.rank, rank.instance, false, record_->incarnation,
                   "rank " + std::to_string(rank.rank) + " on node " + std::to_string(node) + " says the job has " +
                       std::to_string(rank.world_size) + " ranks, the others say " +
                       std::to_string(record_->world_size) + ": start all ranks with one world_size"};
  }
  const bool outlived = !newcomer && rank.incarnation < record_->incarnation && !(rank.waiting && undecided);
  if (outlived || superseded_.contains(rank.instance)) {
    return Refusal{rank.rank, rank.instance, true, record_->incarnation,
                   "rank " + std::to_string(rank.rank) + " was superseded by incarnation " +
                       std::to_string(record_->incarnation) +
                       " of the job: this process takes no further part, end it"};
  }
  return std::nullopt;
}

// ---- Decision ----

void Leader::reconcile_decision(TimeMs now, Effects& effects) {
  if (record_->decision.verdict != Verdict::undecided || !is_complete_incarnation()) return;
  if (!all_wait()) {
    all_waiting_since_.reset();
    return;
  }
  if (!all_waiting_since_) {
    all_waiting_since_ = now;
    ++roll_call_;
  }
  if (!all_answered(now) || !may_swap_record(now)) return;
  if (newest_written() >= record_->incarnation) {  // said by who was heard of since it was opened
    open_next_incarnation(record_->world_size, now, effects);
    return;
  }

  // What storage has may be newer than what is left in memory, and it is not to be taken for empty when it is silent;
  // but what there is to go on from does not wait for it for ever.
  const TimeMs waited_ms = now - *all_waiting_since_;
  const bool is_untold = !storage_trouble().empty();
  const bool storage_is_late = waited_ms >= config_.storage_wait_ms;
  RecoveryQuestion asked = question(!is_untold || storage_is_late);
  // Only damage claims checkpoints of incarnations that are to come.
  const auto is_of_the_future = [&](CheckpointId checkpoint) {
    return checkpoint.incarnation() >= record_->incarnation;
  };
  std::erase_if(inventory_, [&](const auto& entry) { return is_of_the_future(entry.first); });
  std::erase_if(asked.stored, [&](const PieceInfo& piece) { return is_of_the_future(piece.checkpoint); });
  asked.whole = whole_of_last_incarnation();
  const RecoveryAnswer answer = plan_recovery(asked, std::move(inventory_));
  if (!answer.alarm.empty()) alarm_ = answer.alarm;
  const bool can_restore = answer.decision.verdict == Verdict::restore;
  if (is_untold && !(can_restore && (answer.final || storage_is_late))) return;
  if (!answer.final && (waited_ms < config_.node_wait_ms || !has_listened_long(now))) return;
  IncarnationRecord decided = *record_;
  decided.decision = answer.decision;
  // Where nothing was decided for good, the nodes that might still complete it stay the ones to wait for.
  if (!can_restore && answer.decision.verdict != Verdict::fresh) {
    swap_record(std::move(decided), now, effects);
    return;
  }
  // The ranks as they sit now are the incarnation's, and so is what this leader was told of placement.
  drafted_ = AssignmentTable(decided.incarnation, assignments_now(std::exchange(decided.decision.cuts, {})));
  decided.restored = answer.decision.checkpoint;
  decided.base = answer.base;
  decided.replacements.clear();
  decided.assignments = drafted_.name();
  decided.strategy = config_.strategy;
  decided.protection = config_.protection;
  swap_record(std::move(decided), now, effects, drafted_.assignments());
}

// Checkpoints that lie in all their places. Whoever led that incarnation may have committed them, and told nobody who
// is heard.
std::vector<CheckpointId> Leader::whole_of_last_incarnation() {
  if (record_->assignments.incarnation == 0 || has_lost_assignments()) return {};
  if (last_placed_ != record_->assignments) {
    last_places_ = IncarnationPlacement(*record_, assignment_table_);
    last_placed_ = record_->assignments;
  }
  last_places_.put_in_replacements({});
  std::vector<CheckpointId> whole;
  for (const auto& [checkpoint, pieces] : inventory_) {
    const bool is_of_it = checkpoint.incarnation() == record_->assignments.incarnation;
    if (is_of_it && is_complete(pieces, last_places_.own())) whole.push_back(checkpoint);
  }
  return whole;
}

RecoveryQuestion Leader::question(bool with_storage) const {
  RecoveryQuestion question;
  question.reports = present_;
  question.world_size = record_->world_size;
  question.missing = missing_;
  // They may be the last that have what they were given.
  for (const Replacement& each : record_->replacements) {
    if (std::none_of(present_.begin(), present_.end(), [&](const Report* report) {
          return report->node == each.by.node && report->arena_id == each.by.arena_id;
        }))
      add_once(question.missing, each.by.node);
  }
  question.members = assignment_table_.members();
  question.members_are_lost = has_lost_assignments();
  question.members_incarnation = record_->assignments.incarnation;
  question.restored = record_->restored;
  question.base = record_->base;
  question.first_commit = record_->first_commit;
  question.asks_storage = config_.storage;
  question.storage_trouble = storage_trouble();
  if (with_storage && storage_.has_listing()) {
    question.stored = storage_.known_listing().pieces;
    question.unusable = storage_.known_listing().unusable;
  }
  question.damaged = storage_.unusable();
  std::unordered_set<std::string_view> named(2 * bindings_.size());
  question.shards.reserve(2 * bindings_.size());
  for (const auto& [rank, binding] : bindings_) {
    for (const std::string* shard : {&binding.rank.main_shard, &binding.rank.private_shard}) {
      if (named.insert(*shard).second) question.shards.push_back(*shard);
    }
  }
  return question;
}

// Why it is not known what storage has; "" where it is, or where there is none.
std::string Leader::storage_trouble() const {
  if (config_.storage && !storage_.has_listing()) return "it has not answered yet";
  if (config_.storage && storage_.is_finishing()) return "a checkpoint of the incarnation before is being made whole";
  if (config_.storage) return storage_.known_listing().trouble;
  for (const Report* report : present_) {
    if (report->storage) {
      return "node " + std::to_string(config_.node) + " (the leader) was told of none, node " +
             std::to_string(report->node) + " was; give all agents of the job the same option storage";
    }
  }
  return "";
}

bool Leader::all_wait() const {
  return std::all_of(bindings_.begin(), bindings_.end(), [](const auto& entry) { return entry.second.rank.waiting; });
}

// A node counts as present for a while after its death. So that the decision does not count on such a one, every node
// is heard once more; a dead one drops out in time.
bool Leader::all_answered(TimeMs now) const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
    return !is_present(entry.second, now) || entry.second.report.roll_call == roll_call_;
  });
}

}  // namespace ckpt::core
