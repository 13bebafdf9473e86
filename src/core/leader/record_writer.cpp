#include "core/leader/record_writer.hpp"

#include <utility>

#include "core/lists.hpp"

namespace ckpt::core {

// Only this leader writes the record in its term. So a record that it neither knows nor wrote since is older: the store
// lost the newer one, was set back, or an answer was overtaken. In the last case a swap fails.
bool RecordWriter::is_set_back(const IncarnationRecordRead& read) const {
  const bool is_own = contains(swapped_, read.record);
  return in_charge() && read.record.epoch <= view_.epoch && read.record != *view_.record && !is_own;
}

bool RecordWriter::accept(const IncarnationRecordRead& read, bool is_in_store) {
  if (is_set_back(read)) {
    revision_ = read.revision;
    is_set_back_ = true;
    return false;
  }
  is_set_back_ = false;
  is_remembered_ = !is_in_store;
  if (view_.record && read.record != *view_.record) swapped_.clear();  // an unchanged record may have overtaken a write
  if (!view_.record || read.revision != revision_) swap_pending_ = false;
  revision_ = read.revision;
  return true;
}

void RecordWriter::take_charge(TimeMs now, Effects& effects) {
  if (view_.record->epoch > view_.epoch || !may_swap(now)) return;  // a newer leader works, or a swap is pending
  IncarnationRecord record = *view_.record;
  record.epoch = view_.epoch;
  // The former leader may have decided this incarnation before the store lost that, and all who knew may be gone. Two
  // decisions must not have one number.
  if (is_remembered_ && record.incarnation != 0 && record.decision.verdict == Verdict::undecided) ++record.incarnation;
  swap(std::move(record), now, effects);
}

// With its rank assignments, because these may be lost, too.
void RecordWriter::put_back(TimeMs now, Effects& effects) {
  if (!is_set_back_ || !in_charge() || !may_swap(now)) return;
  is_set_back_ = false;
  effects.push_back(
      Notice{"the coordination store lost the job's record \"incarnation\" or holds an older one; this node, "
             "which leads the job, writes it again"});
  const bool has_its_assignments = view_.assignment_table.name() == view_.record->assignments;
  swap(*view_.record, now, effects,
       has_its_assignments ? view_.assignment_table.assignments() : std::vector<RankAssignment>());
}

bool RecordWriter::may_swap(TimeMs now) const { return !swap_pending_ || now - swapped_at_ >= view_.config.lease_ms; }

void RecordWriter::swap(IncarnationRecord record, TimeMs now, Effects& effects,
                        std::vector<RankAssignment> assignments) {
  if (!may_swap(now)) return;
  swap_pending_ = true;
  swapped_at_ = now;
  add_once(swapped_, record);
  effects.push_back(SwapIncarnationRecord{revision_, std::move(record), std::move(assignments)});
}

}  // namespace ckpt::core
