// RecordWriter writes the incarnation's record for the leader, with the leader's epoch, by one compare-and-swap at a
// time. If the store loses the newest record or returns an older one, it writes the newest one again.
#pragma once

#include <vector>

#include "core/events.hpp"
#include "core/leader/job_view.hpp"

namespace ckpt::core {

class RecordWriter {
 public:
  explicit RecordWriter(const JobView& view) : view_(view) {}

  // Returns false if the record that was read is older than the view's record. The view's record then stays.
  // `is_in_store`: true if the store has this record. False if the store has an older record: then `read` is a newer
  // record that this node remembers, with the revision of the older one.
  bool accept(const IncarnationRecordRead& read, bool is_in_store);

  bool in_charge() const { return view_.record && view_.record->epoch == view_.epoch; }
  void take_charge(TimeMs now, Effects& effects);
  void put_back(TimeMs now, Effects& effects);

  bool may_swap(TimeMs now) const;
  void swap(IncarnationRecord record, TimeMs now, Effects& effects, std::vector<RankAssignment> assignments = {});

 private:
  bool is_set_back(const IncarnationRecordRead& read) const;

  const JobView& view_;
  std::uint64_t revision_ = 0;
  bool swap_pending_ = false;
  std::vector<IncarnationRecord> swapped_;  // records whose writing it ordered since the view's record was read
  bool is_set_back_ = false;                // the store has an older record than the view
  bool is_remembered_ = false;              // this node remembers the view's record, and the store has an older one
  TimeMs swapped_at_ = 0;
};

}  // namespace ckpt::core
