// KnownAssignments keeps the leader's copy of the rank assignments. It reads them from the coordination store when the
// incarnation's record names others, and says when they are lost for good.
#pragma once

#include <optional>
#include <vector>

#include "core/events.hpp"
#include "core/leader/job_view.hpp"

namespace ckpt::core {

class KnownAssignments {
 public:
  // Only KnownAssignments changes `table` and `given_up`, fields of the view.
  KnownAssignments(const JobView& view, AssignmentTable& table, AssignmentsName& given_up)
      : view_(view), table_(table), given_up_(given_up) {}

  void on(const AssignmentsRead& read);
  void on_record(const IncarnationRecord& next);  // call this before the record becomes the view's
  // Returns true if the view has the assignments that the record names, or if they are lost for good.
  bool reconcile(TimeMs now, Effects& effects);
  // Prepares the assignments of the next incarnation, which this leader is about to write.
  const AssignmentTable& draft(std::uint64_t incarnation, std::vector<RankAssignment> assignments);
  // Returns the nodes that have stopped being members since the last call.
  std::vector<NodeId> take_released();

 private:
  bool is_known() const { return table_.name() == view_.record->assignments || view_.has_lost_assignments(); }
  bool give_up(TimeMs now, Effects& effects);
  void set(AssignmentTable next);
  void note_released(const std::vector<Member>& next);

  const JobView& view_;
  AssignmentTable& table_;
  AssignmentsName& given_up_;
  AssignmentTable drafted_;  // the ones that this leader wrote last
  std::optional<TimeMs> asked_at_;
  bool have_vanished_ = false;  // the newest read found none
  AssignmentsName vanished_;    // this leader asked for these, and the store did not have them
  TimeMs vanished_since_ = 0;
  std::vector<NodeId> released_;
};

}  // namespace ckpt::core
