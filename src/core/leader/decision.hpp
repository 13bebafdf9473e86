// DecisionMaker is the part of the leader that decides what the ranks restore. It waits until all ranks ask and the
// nodes have reported, then lets plan_recovery() (restore_decision.hpp) choose the checkpoint, and records the choice.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/events.hpp"
#include "core/leader/admission.hpp"
#include "core/leader/job_view.hpp"
#include "core/leader/known_assignments.hpp"
#include "core/leader/losses.hpp"
#include "core/leader/record_writer.hpp"
#include "core/leader/storage.hpp"

namespace ckpt::core {

class DecisionMaker {
 public:
  // The parts of the leader that DecisionMaker asks, and those that carry out its decision.
  struct Others {
    RecordWriter& record_writer;
    KnownAssignments& assignments;
    AdmissionControl& admission;
    const Losses& losses;
    const JobStorage& storage;
  };
  // DecisionMaker may empty `inventory`, a field of the view. After that, no other part may use it in the same
  // reconciliation.
  DecisionMaker(const JobView& view, Inventory& inventory, std::string& alarm, const Others& others)
      : view_(view), inventory_(inventory), alarm_(alarm), others_(others) {}

  void on_pause() { all_waiting_since_.reset(); }
  // `before`: the places of the previous incarnation, if it had any.
  void on_new_incarnation(IncarnationPlacement before);
  void on_placed();  // the incarnation has begun
  void reconcile(TimeMs now, Effects& effects);

  // The number of the newest roll call. The leader calls the roll when all ranks wait.
  std::uint64_t roll_call() const { return roll_call_; }

 private:
  bool all_answered(TimeMs now) const;
  RecoveryQuestion question(bool with_storage) const;
  void write(const RecoveryAnswer& answer, TimeMs now, Effects& effects);
  std::vector<RankAssignment> assignments_now(const std::vector<Cut>& cuts,
                                              const std::vector<std::vector<Cut>>& takes) const;
  std::vector<CheckpointId> whole_of_last_incarnation();

  const JobView& view_;
  Inventory& inventory_;
  std::string& alarm_;
  Others others_;
  std::optional<TimeMs> all_waiting_since_;
  std::uint64_t roll_call_ = 0;
  IncarnationPlacement last_places_;  // of the previous incarnation, if known
  AssignmentsName last_placed_;       // the rank assignments of last_places_
};

}  // namespace ckpt::core
