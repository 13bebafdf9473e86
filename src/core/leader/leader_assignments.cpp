// What the leader knows of who runs where: it wrote that itself, or reads it from the store.
#include <algorithm>
#include <utility>

#include "core/leader/leader.hpp"

namespace ckpt::core {

void Leader::on(const AssignmentsRead& read) {
  if (!view_.record || read.name != view_.record->assignments) return;
  if (is_named(read.name, read.assignments)) return set_assignments({read.name.incarnation, read.assignments});
  assignments_vanished_ = true;
}

// Asks again after a while: what it asked for may have been removed for an incarnation that it has yet to hear of.
// Where none comes they are lost, or the record is an older one again: then nobody is known to have been a member.
bool Leader::reconcile_assignments(TimeMs now, Effects& effects) {
  if (knows_assignments()) return true;
  if (drafted_.name() == view_.record->assignments) {
    set_assignments(std::exchange(drafted_, {}));
    effects.push_back(RemoveAssignments{view_.record->assignments.incarnation});
    return true;
  }
  if (std::exchange(assignments_vanished_, false) && give_up_assignments(now, effects)) return true;
  if (!assignments_asked_at_ || now - *assignments_asked_at_ >= view_.config.lease_ms) {
    assignments_asked_at_ = now;
    effects.push_back(ReadAssignments{view_.record->assignments});
  }
  return false;
}

bool Leader::give_up_assignments(TimeMs now, Effects& effects) {
  if (vanished_assignments_ != view_.record->assignments) {
    vanished_assignments_ = view_.record->assignments;
    vanished_since_ = now;
  }
  if (now - vanished_since_ < view_.config.node_wait_ms) return false;
  set_assignments({});
  view_.given_up_assignments = view_.record->assignments;
  effects.push_back(Notice{"the coordination store lost the rank assignments of incarnation " +
                           std::to_string(view_.record->assignments.incarnation) +
                           " of the job, or holds older ones; the job begins a new incarnation: "
                           "restart all ranks, unless the launcher does"});
  return true;
}

void Leader::set_assignments(AssignmentTable assignment_table) {
  note_released(assignment_table.members());
  view_.assignment_table = std::move(assignment_table);
  assignments_asked_at_.reset();
  vanished_assignments_ = {};
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

}  // namespace ckpt::core
