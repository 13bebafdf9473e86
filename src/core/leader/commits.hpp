// Commits is the part of the leader that declares a checkpoint committed or abandoned.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/events.hpp"
#include "core/leader/job_view.hpp"
#include "core/leader/record_writer.hpp"

namespace ckpt::core {

class Commits {
 public:
  // Commits removes pieces from `inventory`, a field of the view, if they contradict those of the incarnation's
  // members.
  Commits(const JobView& view, Inventory& inventory, std::string& alarm, RecordWriter& record_writer)
      : view_(view), inventory_(inventory), alarm_(alarm), record_writer_(record_writer) {}

  void on_new_incarnation();
  void on_record();  // the view has a new record

  // The leader calls these in this order. leave_out_outsiders() leaves out the pieces of nodes that are not members, if
  // they contradict those of members. record_first_commit() writes into the incarnation's record that the incarnation
  // has a commit. abandon_disagreeing() abandons checkpoints whose ranks captured different bytes. reconcile() commits
  // and abandons. `frozen_at`: the iteration of the incarnation's halt, if it is decided. Its checkpoint is not
  // abandoned: if a rank died, its agent may still find pieces that the rank left in its slots.
  void leave_out_outsiders();
  void record_first_commit(TimeMs now, Effects& effects);
  void abandon_disagreeing();
  void reconcile(std::optional<std::int64_t> frozen_at, TimeMs now, Effects& effects);

  CheckpointId committed() const { return committed_; }
  CheckpointId own_commit() const { return own_commit_; }
  // The newest commit that the present nodes know of. A new leader does not announce it, because a newer one may exist.
  CheckpointId newest_known() const;
  const std::vector<CheckpointId>& abandoned() const { return abandoned_; }
  std::int64_t resume_at() const { return resume_at_; }

  // At the newest known commit: the fewest copies of any shard, and how many members any parity group can still lose.
  std::uint32_t copies_now() const;
  std::uint32_t parity_now() const;
  // True if some piece of the checkpoint is on fewer nodes than its placement asks for.
  bool is_short(CheckpointId checkpoint) const;

 private:
  bool never_complete(CheckpointId checkpoint, const Pieces& pieces) const;
  void name_next_iteration(CheckpointId abandoned, TimeMs now);
  void commit_to(CheckpointId checkpoint);

  const JobView& view_;
  Inventory& inventory_;
  std::string& alarm_;
  RecordWriter& record_writer_;
  CheckpointId committed_;
  CheckpointId own_commit_;  // newest commit that this leader made itself
  std::vector<CheckpointId> abandoned_;
  std::int64_t resume_at_ = 0;
  CheckpointId newest_abandoned_;
  TimeMs named_at_ = 0;      // when resume_at_ was last set
  std::int64_t margin_ = 0;  // iterations from the furthest rank's next one to the next resume_at_
};

}  // namespace ckpt::core
