#include "core/leader/decision.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "core/lists.hpp"

namespace ckpt::core {

void DecisionMaker::on_new_incarnation(IncarnationPlacement before) {
  if (before.is_arranged()) {
    last_places_ = std::move(before);
    last_placed_ = view_.record->assignments;
  }
  all_waiting_since_.reset();
}

void DecisionMaker::on_placed() {
  last_places_ = {};
  last_placed_ = {};
}

void DecisionMaker::reconcile(TimeMs now, Effects& effects) {
  if (view_.record->decision.verdict != Verdict::undecided || !view_.is_complete_incarnation()) return;
  if (!view_.all_wait()) {
    all_waiting_since_.reset();
    return;
  }
  if (!all_waiting_since_) {
    all_waiting_since_ = now;
    ++roll_call_;
  }
  if (!all_answered(now) || !others_.record_writer.may_swap(now)) return;
  // As reported by nodes that were heard since the incarnation was opened.
  if (others_.admission.newest_written() >= view_.record->incarnation) {
    others_.admission.open_next(view_.record->world_size, now, effects);
    return;
  }

  // Storage may have something newer than memory, and silence does not mean that it is empty. But a restore that is
  // possible does not wait for storage for ever.
  const TimeMs waited_ms = now - *all_waiting_since_;
  const bool is_untold = !others_.storage.why_unknown(view_.present).empty();
  const bool storage_is_late = waited_ms >= view_.config.storage_wait_ms;
  RecoveryQuestion asked = question(!is_untold || storage_is_late);
  // Only damage names checkpoints of future incarnations.
  const auto is_of_the_future = [&](CheckpointId checkpoint) {
    return checkpoint.incarnation() >= view_.record->incarnation;
  };
  std::erase_if(inventory_, [&](const auto& entry) { return is_of_the_future(entry.first); });
  std::erase_if(asked.stored, [&](const PieceInfo& piece) { return is_of_the_future(piece.checkpoint); });
  asked.whole = whole_of_last_incarnation();
  const RecoveryAnswer answer = plan_recovery(asked, std::move(inventory_));
  if (!answer.alarm.empty()) alarm_ = answer.alarm;
  const bool can_restore = answer.decision.verdict == Verdict::restore;
  if (is_untold && !(can_restore && (answer.final || storage_is_late))) return;
  if (!answer.final && (waited_ms < view_.config.node_wait_ms || !others_.losses.has_listened_long(now))) return;
  write(answer, now, effects);
}

void DecisionMaker::write(const RecoveryAnswer& answer, TimeMs now, Effects& effects) {
  const bool can_restore = answer.decision.verdict == Verdict::restore;
  IncarnationRecord decided = *view_.record;
  decided.decision = answer.decision;
  // If nothing was decided for good, wait for the same nodes as before: they may still complete it.
  if (!can_restore && answer.decision.verdict != Verdict::fresh) {
    others_.record_writer.swap(std::move(decided), now, effects);
    return;
  }
  // The ranks' present nodes become those of the incarnation. So do this leader's options for placement.
  const AssignmentTable& drafted = others_.assignments.draft(
      decided.incarnation, assignments_now(std::exchange(decided.decision.cuts, {}), answer.takes));
  decided.restored = answer.decision.checkpoint;
  decided.restored_ranks = answer.restored_ranks;
  decided.base = answer.base;
  decided.replacements.clear();
  decided.assignments = drafted.name();
  decided.strategy = view_.config.strategy;
  decided.protection = view_.config.protection;
  others_.record_writer.swap(std::move(decided), now, effects, drafted.assignments());
}

// The ranks on their present nodes, by rank. `cuts`: of the checkpoint that they restore, by shard. `takes`: see
// RecoveryAnswer.
std::vector<RankAssignment> DecisionMaker::assignments_now(const std::vector<Cut>& cuts,
                                                           const std::vector<std::vector<Cut>>& takes) const {
  std::vector<RankAssignment> assignments;
  assignments.reserve(view_.bindings.size());
  for (const auto& [rank, binding] : view_.bindings) {
    const Report& report = binding.peer->report;
    const Cut* cut = takes.empty() ? find_cut(cuts, binding.rank.main_shard) : nullptr;
    assignments.push_back({rank, binding.node, report.arena_id, report.domain, binding.rank.main_shard,
                           binding.rank.private_shard, cut == nullptr ? 1 : cut->of, binding.rank.wants_gpu_replication,
                           takes.empty() ? std::vector<Cut>() : takes.at(rank)});
  }
  return assignments;
}

// Checkpoints that are whole in all their places. The leader of that incarnation may have committed them without
// telling any node that is present now.
std::vector<CheckpointId> DecisionMaker::whole_of_last_incarnation() {
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

RecoveryQuestion DecisionMaker::question(bool with_storage) const {
  RecoveryQuestion question;
  question.reports = view_.present;
  question.world_size = view_.record->world_size;
  question.missing = view_.missing;
  // They may be the last that have their pieces.
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
  question.restored_ranks = view_.record->restored_ranks;
  question.base = view_.record->base;
  question.first_commit = view_.record->first_commit;
  question.asks_storage = view_.config.storage;
  question.storage_trouble = others_.storage.why_unknown(view_.present);
  if (with_storage && others_.storage.has_listing()) {
    question.stored = others_.storage.known_listing().pieces;
    question.unusable = others_.storage.known_listing().unusable;
  }
  question.damaged = others_.storage.unusable();
  std::unordered_set<std::string_view> named(2 * view_.bindings.size());
  question.shards.reserve(2 * view_.bindings.size());
  for (const auto& [rank, binding] : view_.bindings) {
    for (const std::string* shard : {&binding.rank.main_shard, &binding.rank.private_shard}) {
      if (named.insert(*shard).second) question.shards.push_back(*shard);
    }
    question.private_shards.push_back(binding.rank.private_shard);
  }
  const std::string& first = view_.bindings.begin()->second.rank.main_shard;
  const bool share = std::all_of(view_.bindings.begin(), view_.bindings.end(),
                                 [&](const auto& entry) { return entry.second.rank.main_shard == first; });
  if (share) question.main_shard = first;
  question.takes_shards = std::all_of(view_.bindings.begin(), view_.bindings.end(),
                                      [](const auto& entry) { return entry.second.rank.takes_shards; });
  const auto& last = view_.assignment_table.assignments();
  question.members_are_as_many = last.size();
  for (const RankAssignment& each : last) {
    question.member_shards.insert(question.member_shards.end(), {each.main_shard, each.private_shard});
    for (const Cut& taken : each.takes) question.taken_shards.push_back(taken.shard);
  }
  question.members_share = share && !last.empty() && std::all_of(last.begin(), last.end(), [&](const auto& each) {
                             return each.main_shard == first;
                           });
  return question;
}

// A node counts as present for a while after its death. So every node must report once more before the decision. A dead
// node drops out in time.
bool DecisionMaker::all_answered(TimeMs now) const {
  return std::all_of(view_.peers.begin(), view_.peers.end(), [&](const auto& entry) {
    return !view_.is_present(entry.second, now) || entry.second.report.roll_call == roll_call_;
  });
}

}  // namespace ckpt::core
