// RestoreProgress is the part of the leader that watches a restore. It plans which node reads which piece from storage.
// If a piece has no source any more, stranded() says why the restore cannot go on.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/events.hpp"
#include "core/leader/job_view.hpp"
#include "core/leader/record_writer.hpp"
#include "core/leader/storage.hpp"

namespace ckpt::core {

class RestoreProgress {
 public:
  RestoreProgress(const JobView& view, RecordWriter& record_writer, JobStorage& storage)
      : view_(view), record_writer_(record_writer), storage_(storage) {}

  void on_new_incarnation();
  void on_pause(TimeMs now);  // the pause ends now; waits start again
  void reconcile(TimeMs now, Effects& effects);

  // Why the decided checkpoint can no longer be restored; "" while it can.
  const std::string& stranded() const { return stranded_; }
  bool is_reading_storage() const { return reading_storage_; }
  // Plans the reads from storage, by node. One node reads each piece that no node has. The others then fetch it from
  // there.
  std::map<NodeId, std::vector<FetchOrder>> plan_reads(CheckpointId committed, TimeMs now) const;

 private:
  std::set<std::string> lacking_in_memory() const;
  bool pass_over_checkpoint(bool is_lacking, TimeMs now, Effects& effects);
  NodeId reader_of(const Place& place, TimeMs now) const;

  const JobView& view_;
  RecordWriter& record_writer_;
  JobStorage& storage_;
  std::optional<TimeMs> unreadable_since_;  // since when storage cannot be read
  std::optional<TimeMs> source_lost_at_;    // when a shard that ranks wait for lost its last source
  std::string stranded_;
  bool reading_storage_ = false;
};

}  // namespace ckpt::core
