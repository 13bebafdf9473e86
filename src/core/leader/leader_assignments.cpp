// What the leader knows of who runs where: it wrote that itself, or reads it from the store.
#include <algorithm>
#include <utility>

#include "core/leader/leader.hpp"

namespace ckpt::core {

void Leader::on(const AssignmentsRead& read) {
  if (!record_ || read.name != record_->assignments) return;
  if (is_named(read.name, read.assignments)) return set_assignments({read.name.incarnation, read.assignments});
  assignments_vanished_ = true;
}

// Asks again after a while: what it asked for may have been removed for an incarnation that it has yet to hear of.
// Where none comes they are lost, or the record is an older one again: then nobody is known to have been a member.
bool Leader::reconcile_assignments(TimeMs now, Effects& effects) {
  if (knows_assignments()) return true;
  if (drafted_.name() == record_->assignments) {
    set_assignments(std::exchange(drafted_, {}));
    effects.push_back(RemoveAssignments{record_->assignments.incarnation});
    return true;
  }
  if (std::exchange(assignments_vanished_, false) && give_up_assignments(now, effects)) return true;
  if (!assignments_asked_at_ || now - *assignments_asked_at_ >= config_.lease_ms) {
    assignments_asked_at_ = now;
    effects.push_back(ReadAssignments{record_->assignments});
  }
  return false;
}

bool Leader::give_up_assignments(TimeMs now, Effects& effects) {
  if (vanished_assignments_ != record_->assignments) {
    vanished_assignments_ = record_->assignments;
    vanished_since_ = now;
  }
  if (now - vanished_since_ < config_.node_wait_ms) return false;
  set_assignments({});
  given_up_assignments_ = record_->assignments;
  effects.push_back(Notice{"the coordination store lost the rank assignments of incarnation " +
                           std::to_string(record_->assignments.incarnation) +
                           " of the job, or holds older ones; the job begins a new incarnation: "
                           "restart all ranks, unless the launcher does"});
  return true;
}

void Leader::set_assignments(AssignmentTable assignment_table) {
  note_released(assignment_table.members());
  assignment_table_ = std::move(assignment_table);
  assignments_asked_at_.reset();
  vanished_assignments_ = {};
}

// The ranks as they sit now, by rank. `cuts` of the checkpoint that they restore, by shard.
std::vector<RankAssignment> Leader::assignments_now(const std::vector<Cut>& cuts) const {
  std::vector<RankAssignment> assignments;
  assignments.reserve(bindings_.size());
  for (const auto& [rank, binding] : bindings_) {
    const Report& report = binding.peer->report;
    const Cut* cut = find_cut(cuts, binding.rank.main_shard);
    assignments.push_back({rank, binding.node, report.arena_id, report.domain, binding.rank.main_shard,
                           binding.rank.private_shard, cut == nullptr ? 1 : cut->of,
                           binding.rank.wants_gpu_replication});
  }
  return assignments;
}

}  // namespace ckpt::core
