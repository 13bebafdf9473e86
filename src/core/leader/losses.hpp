// Which members are lost: who is told of it, and who replaces them. It also knows for how long the leader has listened,
// because a leader that has just begun to listen must call nobody lost.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <vector>

#include "core/election.hpp"
#include "core/events.hpp"
#include "core/leader/job_view.hpp"
#include "core/leader/record_writer.hpp"
#include "core/leader/replacements.hpp"

namespace ckpt::core {

class Losses {
 public:
  Losses(const JobView& view, RecordWriter& record_writer, const Predecessor& predecessor)
      : view_(view), record_writer_(record_writer), predecessor_(predecessor) {}

  void on_report_of(NodeId node);
  void on_directive_of(NodeId other, TimeMs now);  // it still takes itself for the leader
  void on_pause(TimeMs now);                       // it ends now
  void begin_to_listen(TimeMs now) { listening_since_ = followed_at_ = now; }
  void release(const std::vector<NodeId>& former_members);

  // `newest_directive`: the number of the last one that was sent. `gap_ms`: the leader's own delay.
  void reconcile(std::uint64_t newest_directive, TimeMs gap_ms, TimeMs now, Effects& effects);

  // Another node has obeyed this leader in the last `within_ms`.
  bool is_followed(TimeMs now, TimeMs within_ms) const;
  // Long enough to say that a member does not answer.
  bool has_listened(TimeMs now) const;
  bool has_listened_long(TimeMs now) const { return now - listening_since_ > view_.config.node_timeout_ms; }

 private:
  bool misses_only_its_predecessor(TimeMs now) const;
  bool was_followed_since(TimeMs since, std::uint64_t newest_directive, TimeMs now);
  bool knows_who_is_lost(std::uint64_t newest_directive, TimeMs gap_ms, TimeMs now);
  std::set<NodeId> lost_members(TimeMs now) const;
  void notify_changes(const std::set<NodeId>& lost, TimeMs now, Effects& effects);
  void notify_released(bool knows_who_is_lost, TimeMs now, Effects& effects);
  std::vector<RankAssignment> assignments_of(const std::set<NodeId>& nodes) const;
  std::vector<StandbyNode> standbys() const;

  const JobView& view_;
  RecordWriter& record_writer_;
  Predecessor predecessor_;                    // none once it has reported
  TimeMs listening_since_ = view_.elected_at;  // since when it hears nodes, without a pause of its own
  TimeMs followed_at_ = view_.elected_at;
  std::map<NodeId, NodeId> notified_lost_;  // lost members that were announced, with the announced replacement
  std::vector<NodeId> released_;            // former members to announce as released
  // The number of the newest directive at some times, not more often than reports come.
  struct Sent {
    TimeMs at = 0;
    std::uint64_t sequence = 0;
  };
  std::deque<Sent> sent_;
};

}  // namespace ckpt::core
