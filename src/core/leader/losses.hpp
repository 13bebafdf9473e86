// Losses is the part of the leader that finds lost members, tells the operator's hook, and chooses replacements. It
// calls no member lost before the leader has listened long enough: a new leader has not heard everybody yet.
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
  void on_directive_of(NodeId other, TimeMs now);  // `other` sent a directive: it believes that it leads
  void on_pause(TimeMs now);                       // the pause ends now
  void begin_to_listen(TimeMs now) { listening_since_ = followed_at_ = now; }
  void release(const std::vector<NodeId>& former_members);
  // Returns the predecessor, once: the caller asks that node to report. Returns no_node later, or if there is none.
  NodeId take_predecessor_to_call();

  // `newest_directive`: number of the last directive sent. `gap_ms`: time from one reconciliation of the leader to the
  // next.
  void reconcile(std::uint64_t newest_directive, TimeMs gap_ms, TimeMs now, Effects& effects);

  // True if another node has obeyed this leader in the last `within_ms`.
  bool is_followed(TimeMs now, TimeMs within_ms) const;
  // True if the leader has listened long enough to say that a member does not answer.
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
  Predecessor predecessor_;  // none once it has reported
  bool is_predecessor_called_ = false;
  TimeMs listening_since_ = view_.elected_at;  // since when it hears nodes without a pause of its own
  TimeMs followed_at_ = view_.elected_at;
  std::map<NodeId, NodeId> notified_lost_;  // members announced as lost, with their announced replacements
  std::vector<NodeId> released_;            // former members to announce as released
  // When the leader had sent the directives up to this number. The leader notes this at most every report_ms / 4.
  struct Sent {
    TimeMs at = 0;
    std::uint64_t sequence = 0;
  };
  std::deque<Sent> sent_;
};

}  // namespace ckpt::core
