// How the ranks get the decided checkpoint: which pieces must be read from storage, and whether some can no longer be
// had at all.
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
  void on_pause(TimeMs now);  // it ends now: waits start anew
  void reconcile(TimeMs now, Effects& effects);

  // Why the decided checkpoint cannot be restored any more, "" while it can.
  const std::string& stranded() const { return stranded_; }
  bool is_reading_storage() const { return reading_storage_; }
  // What no node has of the checkpoint to be restored is read from storage: by one node, from which the others then get
  // it. By the node that reads.
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
