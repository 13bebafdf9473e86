#include "core/leader/known_assignments.hpp"

#include <set>
#include <string>
#include <utility>

namespace ckpt::core {

void KnownAssignments::on(const AssignmentsRead& read) {
  if (!view_.record || read.name != view_.record->assignments) return;
  if (is_named(read.name, read.assignments)) return set({read.name.incarnation, read.assignments});
  have_vanished_ = true;
}

void KnownAssignments::on_record(const IncarnationRecord& next) {
  if (view_.record && next.assignments != view_.record->assignments) asked_at_.reset();
}

// Asks again after a while: the assignments may have been removed for an incarnation that this leader has not heard of
// yet. If none comes, they are lost, or the record was set back. Then nobody is known to have been a member.
bool KnownAssignments::reconcile(TimeMs now, Effects& effects) {
  if (is_known()) return true;
  if (drafted_.name() == view_.record->assignments) {
    set(std::exchange(drafted_, {}));
    effects.push_back(RemoveAssignments{view_.record->assignments.incarnation});
    return true;
  }
  if (std::exchange(have_vanished_, false) && give_up(now, effects)) return true;
  if (!asked_at_ || now - *asked_at_ >= view_.config.lease_ms) {
    asked_at_ = now;
    effects.push_back(ReadAssignments{view_.record->assignments});
  }
  return false;
}

bool KnownAssignments::give_up(TimeMs now, Effects& effects) {
  if (vanished_ != view_.record->assignments) {
    vanished_ = view_.record->assignments;
    vanished_since_ = now;
  }
  if (now - vanished_since_ < view_.config.node_wait_ms) return false;
  set({});
  given_up_ = view_.record->assignments;
  effects.push_back(Notice{"the coordination store lost the rank assignments of incarnation " +
                           std::to_string(view_.record->assignments.incarnation) +
                           " of the job, or holds older ones; the job begins a new incarnation: "
                           "restart all ranks, unless the launcher does"});
  return true;
}

void KnownAssignments::set(AssignmentTable next) {
  note_released(next.members());
  table_ = std::move(next);
  asked_at_.reset();
  vanished_ = {};
}

const AssignmentTable& KnownAssignments::draft(std::uint64_t incarnation, std::vector<RankAssignment> assignments) {
  drafted_ = AssignmentTable(incarnation, std::move(assignments));
  return drafted_;
}

void KnownAssignments::note_released(const std::vector<Member>& next) {
  std::set<NodeId> kept;
  for (const Member& member : next) kept.insert(member.node);
  for (const Member& member : table_.members()) {
    if (!kept.contains(member.node)) released_.push_back(member.node);
  }
}

std::vector<NodeId> KnownAssignments::take_released() { return std::exchange(released_, {}); }

}  // namespace ckpt::core
