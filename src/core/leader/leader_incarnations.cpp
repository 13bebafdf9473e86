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
  for (const auto& [node, peer] : view_.peers) {
    if (!view_.is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      if (rank.incarnation != view_.record->incarnation || rank.incarnation == 0 || superseded_.contains(rank.instance))
        continue;
      if (is_misplaced(peer, rank)) {
        open_incarnation(rank, now, effects);
      } else {
        if (!view_.bindings.contains(rank.rank)) view_.bindings.emplace(rank.rank, Binding{node, &peer, rank});
      }
    }
  }
  for (const auto& [node, peer] : view_.peers) {
    if (!view_.is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      if (rank.incarnation == 0 && !superseded_.contains(rank.instance)) admit_newcomer(peer, rank, now, effects);
    }
  }
  if (view_.record->decision.verdict != Verdict::undecided) return;
  for (const auto& [node, peer] : view_.peers) {
    if (!view_.is_present(peer, now)) continue;
    for (const RankReport& rank : peer.report.ranks) {
      const bool carried = rank.incarnation != 0 && rank.incarnation < view_.record->incarnation && rank.waiting;
      if (carried && rank.world_size == view_.record->world_size && !superseded_.contains(rank.instance)) {
        view_.bindings.try_emplace(rank.rank, Binding{node, &peer, rank});
      }
    }
  }
}

void Leader::refresh_bindings() {
  const bool undecided = view_.record->decision.verdict == Verdict::undecided;
  for (auto it = view_.bindings.begin(); it != view_.bindings.end();) {
    Binding& binding = it->second;
    const Report& report = binding.peer->report;
    const auto entry = std::find_if(report.ranks.begin(), report.ranks.end(), [&](const RankReport& rank) {
      return rank.rank == it->first && rank.instance == binding.rank.instance;
    });
    if (entry != report.ranks.end()) binding.rank = *entry;
    const bool gone = report.epoch == view_.epoch && (entry == report.ranks.end() || serves_older_incarnation(*entry));
    // Before the decision a trainer that is gone makes room for the next one; after it the incarnation keeps its shape.
    const bool leaves = undecided ? gone : is_misplaced(*binding.peer, binding.rank);
    it = leaves ? view_.bindings.erase(it) : std::next(it);
  }
}

// A decision may be written late, when a rank has moved since: its node is then none of the incarnation's. It needs an
// incarnation of its own.
bool Leader::is_misplaced(const Peer& peer, const RankReport& rank) const {
  if (!view_.has_begun()) return false;
  if (rank.rank >= view_.assignment_table.assignments().size()) return true;
  const RankAssignment& assignment = view_.assignment_table.assignments()[rank.rank];
  const bool has_its_place = assignment.node == peer.report.node && assignment.main_shard == rank.main_shard &&
                             assignment.private_shard == rank.private_shard;
  return !has_its_place || !view_.assignment_table.is_member(peer.report.node, peer.report.arena_id);
}

// It was given an older incarnation's checkpoint before it could be carried over into this one.
bool Leader::serves_older_incarnation(const RankReport& rank) const {
  return rank.incarnation != 0 && rank.incarnation < view_.record->incarnation && !rank.waiting;
}

void Leader::admit_newcomer(const Peer& peer, const RankReport& rank, TimeMs now, Effects& effects) {
  const auto bound = view_.bindings.find(rank.rank);
  if (bound != view_.bindings.end() && bound->second.rank.instance == rank.instance) return;
  const bool second_hello = bound != view_.bindings.end();
  const bool decided = view_.record->decision.verdict != Verdict::undecided;
  // A job without a record may have checkpoints on storage, and its incarnations must be newer than those.
  if (view_.record->incarnation == 0 && view_.config.storage && !storage_.knows_incarnations()) return;
  if (view_.record->incarnation == 0 || second_hello || decided) {
    open_incarnation(rank, now, effects);
    return;
  }
  if (rank.world_size == view_.record->world_size)
    view_.bindings.emplace(rank.rank, Binding{peer.report.node, &peer, rank});
}

void Leader::open_incarnation(const RankReport& newcomer, TimeMs now, Effects& effects) {
  const auto bound = view_.bindings.find(newcomer.rank);
  if (bound != view_.bindings.end() && bound->second.rank.instance != newcomer.instance) {
    superseded_.insert(bound->second.rank.instance);
  }
  open_next_incarnation(newcomer.world_size, now, effects);
}

void Leader::open_next_incarnation(std::uint32_t world_size, TimeMs now, Effects& effects) {
  if (!record_writer_.may_swap(now)) return;
  IncarnationRecord next = *view_.record;
  next.incarnation = std::max({view_.record->incarnation, newest_written(), newest_served()}) + 1;
  if (next.incarnation > CheckpointId::incarnation_max) {
    view_.alarm = "no incarnation of the job can follow incarnation " + std::to_string(view_.record->incarnation) +
                  ": it is the last number there is. Give the job another name";
    return;
  }
  next.world_size = world_size;
  next.decision = {};
  record_writer_.swap(std::move(next), now, effects);
}

// The newest incarnation of which anything is known to have been captured. The store says so, unless its records were
// lost or are older ones again: then an incarnation might get a number for the second time, or one below what is to be
// restored.
std::uint64_t Leader::newest_written() const {
  std::uint64_t newest = 0;
  const auto consider = [&](std::uint64_t claimed) {
    if (is_plausible_incarnation(view_.record->incarnation, claimed)) newest = std::max(newest, claimed);
  };
  for (const auto& [node, peer] : view_.peers) {
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
  for (const auto& [node, peer] : view_.peers)
    for (const RankReport& rank : peer.report.ranks) {
      if (is_plausible_incarnation(view_.record->incarnation, rank.incarnation))
        newest = std::max(newest, rank.incarnation);
    }
  return newest;
}

// The newest incarnation that was decided, as far as any node was told.
std::uint64_t Leader::newest_notified() const {
  std::uint64_t newest = 0;
  for (const auto& [node, peer] : view_.peers)
    if (is_plausible_incarnation(view_.record->incarnation, peer.report.newest_known_incarnation))
      newest = std::max(newest, peer.report.newest_known_incarnation);
  return newest;
}

// The record is older than what nodes know: it was lost or set back, and who led by the newer one is gone. The
// incarnation that it should tell of cannot be led; the next one restores what that has captured.
bool Leader::is_outlived() const {
  const bool was_decided = view_.record->decision.verdict == Verdict::undecided && view_.record->incarnation != 0 &&
                           newest_notified() == view_.record->incarnation;
  return was_decided || newest_served() > view_.record->incarnation;
}

void Leader::follow_outlived(TimeMs now, Effects& effects) {
  effects.push_back(Notice{"the coordination store lost the record of incarnation " +
                           std::to_string(std::max(view_.record->incarnation, newest_served())) +
                           " of the job, or has an older one, and no agent that is left knows who took part in it; the "
                           "job goes on with a new incarnation"});
  open_next_incarnation(newest_world_size(), now, effects);
}

// By the record, or, where that is lost, by the ranks; 0 where there are none: then the first of them opens an
// incarnation.
std::uint32_t Leader::newest_world_size() const {
  std::uint32_t world_size = view_.record->world_size;
  for (const auto& [node, peer] : view_.peers)
    for (const RankReport& rank : peer.report.ranks) {
      if (world_size == 0) world_size = rank.world_size;
    }
  return world_size;
}

std::optional<Refusal> Leader::refusal_of(NodeId node, const RankReport& rank) const {
  const auto bound = view_.bindings.find(rank.rank);
  const bool is_bound = bound != view_.bindings.end() && bound->second.rank.instance == rank.instance;
  if (is_bound && !serves_older_incarnation(rank)) return std::nullopt;
  const bool undecided = view_.record->decision.verdict == Verdict::undecided;
  const bool newcomer = rank.incarnation == 0;
  if (newcomer && undecided && view_.record->incarnation != 0 && rank.world_size != view_.record->world_size) {
    return Refusal{rank.rank, rank.instance, false, view_.record->incarnation,
                   "rank " + std::to_string(rank.rank) + " on node " + std::to_string(node) + " says the job has " +
                       std::to_string(rank.world_size) + " ranks, the others say " +
                       std::to_string(view_.record->world_size) + ": start all ranks with one world_size"};
  }
  const bool outlived = !newcomer && rank.incarnation < view_.record->incarnation && !(rank.waiting && undecided);
  if (outlived || superseded_.contains(rank.instance)) {
    return Refusal{rank.rank, rank.instance, true, view_.record->incarnation,
                   "rank " + std::to_string(rank.rank) + " was superseded by incarnation " +
                       std::to_string(view_.record->incarnation) +
                       " of the job: this process takes no further part, end it"};
  }
  return std::nullopt;
}

// ---- Decision ----

void Leader::reconcile_decision(TimeMs now, Effects& effects) {
  if (view_.record->decision.verdict != Verdict::undecided || !view_.is_complete_incarnation()) return;
  if (!view_.all_wait()) {
    all_waiting_since_.reset();
    return;
  }
  if (!all_waiting_since_) {
    all_waiting_since_ = now;
    ++roll_call_;
  }
  if (!all_answered(now) || !record_writer_.may_swap(now)) return;
  if (newest_written() >= view_.record->incarnation) {  // said by who was heard of since it was opened
    open_next_incarnation(view_.record->world_size, now, effects);
    return;
  }

  // What storage has may be newer than what is left in memory, and it is not to be taken for empty when it is silent;
  // but what there is to go on from does not wait for it for ever.
  const TimeMs waited_ms = now - *all_waiting_since_;
  const bool is_untold = !storage_trouble().empty();
  const bool storage_is_late = waited_ms >= view_.config.storage_wait_ms;
  RecoveryQuestion asked = question(!is_untold || storage_is_late);
  // Only damage claims checkpoints of incarnations that are to come.
  const auto is_of_the_future = [&](CheckpointId checkpoint) {
    return checkpoint.incarnation() >= view_.record->incarnation;
  };
  std::erase_if(view_.inventory, [&](const auto& entry) { return is_of_the_future(entry.first); });
  std::erase_if(asked.stored, [&](const PieceInfo& piece) { return is_of_the_future(piece.checkpoint); });
  asked.whole = whole_of_last_incarnation();
  const RecoveryAnswer answer = plan_recovery(asked, std::move(view_.inventory));
  if (!answer.alarm.empty()) view_.alarm = answer.alarm;
  const bool can_restore = answer.decision.verdict == Verdict::restore;
  if (is_untold && !(can_restore && (answer.final || storage_is_late))) return;
  if (!answer.final && (waited_ms < view_.config.node_wait_ms || !has_listened_long(now))) return;
  IncarnationRecord decided = *view_.record;
  decided.decision = answer.decision;
  // Where nothing was decided for good, the nodes that might still complete it stay the ones to wait for.
  if (!can_restore && answer.decision.verdict != Verdict::fresh) {
    record_writer_.swap(std::move(decided), now, effects);
    return;
  }
  // The ranks as they sit now are the incarnation's, and so is what this leader was told of placement.
  const AssignmentTable& drafted =
      assignments_.draft(decided.incarnation, assignments_now(std::exchange(decided.decision.cuts, {})));
  decided.restored = answer.decision.checkpoint;
  decided.base = answer.base;
  decided.replacements.clear();
  decided.assignments = drafted.name();
  decided.strategy = view_.config.strategy;
  decided.protection = view_.config.protection;
  record_writer_.swap(std::move(decided), now, effects, drafted.assignments());
}

// The ranks as they sit now, by rank. `cuts` of the checkpoint that they restore, by shard.
std::vector<RankAssignment> Leader::assignments_now(const std::vector<Cut>& cuts) const {
  std::vector<RankAssignment> assignments;
  assignments.reserve(view_.bindings.size());
  for (const auto& [rank, binding] : view_.bindings) {
    const Report& report = binding.peer->report;
    const Cut* cut = find_cut(cuts, binding.rank.main_shard);
    assignments.push_back({rank, binding.node, report.arena_id, report.domain, binding.rank.main_shard,
                           binding.rank.private_shard, cut == nullptr ? 1 : cut->of,
                           binding.rank.wants_gpu_replication});
  }
  return assignments;
}

// Checkpoints that lie in all their places. Whoever led that incarnation may have committed them, and told nobody who
// is heard.
std::vector<CheckpointId> Leader::whole_of_last_incarnation() {
  if (view_.record->assignments.incarnation == 0 || view_.has_lost_assignments()) return {};
  if (last_placed_ != view_.record->assignments) {
    last_places_ = IncarnationPlacement(*view_.record, view_.assignment_table);
    last_placed_ = view_.record->assignments;
  }
  last_places_.put_in_replacements({});
  std::vector<CheckpointId> whole;
  for (const auto& [checkpoint, pieces] : view_.inventory) {
    const bool is_of_it = checkpoint.incarnation() == view_.record->assignments.incarnation;
    if (is_of_it && is_complete(pieces, last_places_.own())) whole.push_back(checkpoint);
  }
  return whole;
}

RecoveryQuestion Leader::question(bool with_storage) const {
  RecoveryQuestion question;
  question.reports = view_.present;
  question.world_size = view_.record->world_size;
  question.missing = view_.missing;
  // They may be the last that have what they were given.
  for (const Replacement& each : view_.record->replacements) {
    if (std::none_of(view_.present.begin(), view_.present.end(), [&](const Report* report) {
          return report->node == each.by.node && report->arena_id == each.by.arena_id;
        }))
      add_once(question.missing, each.by.node);
  }
  question.members = view_.assignment_table.members();
  question.members_are_lost = view_.has_lost_assignments();
  question.members_incarnation = view_.record->assignments.incarnation;
  question.restored = view_.record->restored;
  question.base = view_.record->base;
  question.first_commit = view_.record->first_commit;
  question.asks_storage = view_.config.storage;
  question.storage_trouble = storage_trouble();
  if (with_storage && storage_.has_listing()) {
    question.stored = storage_.known_listing().pieces;
    question.unusable = storage_.known_listing().unusable;
  }
  question.damaged = storage_.unusable();
  std::unordered_set<std::string_view> named(2 * view_.bindings.size());
  question.shards.reserve(2 * view_.bindings.size());
  for (const auto& [rank, binding] : view_.bindings) {
    for (const std::string* shard : {&binding.rank.main_shard, &binding.rank.private_shard}) {
      if (named.insert(*shard).second) question.shards.push_back(*shard);
    }
  }
  return question;
}

// Why it is not known what storage has; "" where it is, or where there is none.
std::string Leader::storage_trouble() const {
  if (view_.config.storage && !storage_.has_listing()) return "it has not answered yet";
  if (view_.config.storage && storage_.is_finishing())
    return "a checkpoint of the incarnation before is being made whole";
  if (view_.config.storage) return storage_.known_listing().trouble;
  for (const Report* report : view_.present) {
    if (report->storage) {
      return "node " + std::to_string(view_.config.node) + " (the leader) was told of none, node " +
             std::to_string(report->node) + " was; give all agents of the job the same option storage";
    }
  }
  return "";
}

// A node counts as present for a while after its death. So that the decision does not count on such a one, every node
// is heard once more; a dead one drops out in time.
bool Leader::all_answered(TimeMs now) const {
  return std::all_of(view_.peers.begin(), view_.peers.end(), [&](const auto& entry) {
    return !view_.is_present(entry.second, now) || entry.second.report.roll_call == roll_call_;
  });
}

}  // namespace ckpt::core
