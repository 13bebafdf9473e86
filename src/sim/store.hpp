// Store is the simulator's coordination store. It has the leader's record and the incarnation's record, which change by
// compare-and-swap. Their revisions grow by one with every write. It also has records of rank assignments. Such a
// record has room for a few assignments only, so an incarnation needs several. A request that comes during an outage is
// answered after the outage. It may be carried out before the outage ends. A node gets the answers to its requests in
// their order. Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "core/events.hpp"
#include "core/leader/rank_assignments.hpp"
#include "sim/event_queue.hpp"
#include "sim/random.hpp"

namespace ckpt::sim {

using core::NodeId;

class Store {
 public:
  using Answer = std::function<void(const core::Event& read)>;
  using LeaderWritten = std::function<void(NodeId by, const core::LeaderRecordRead& now)>;
  using IncarnationWritten =
      std::function<void(const core::IncarnationRecordRead& before, const core::IncarnationRecordRead& now)>;

  Store(EventQueue& event_queue, Random random, LeaderWritten leader_written);

  // Each of these ends in one call of `answer`, with the record as it is then. `by`: the node that asks.
  void read_leader(NodeId by, Answer answer);
  void read_incarnation(NodeId by, Answer answer);
  void swap(NodeId by, const core::SwapLeaderRecord& swap, Answer answer);
  // Writes the record of an incarnation. The caller must write its rank assignments before, one record at a time, with
  // write_assignments(), which ends in a call of `done`.
  void swap(NodeId by, const core::SwapIncarnationRecord& swap, IncarnationWritten written, Answer answer);
  static constexpr std::size_t assignments_per_record = 3;
  void write_assignments(NodeId by, const core::AssignmentsName& name, std::size_t number,
                         std::vector<core::RankAssignment> assignments, std::function<void()> done);
  void read_assignments(NodeId by, const core::AssignmentsName& name, Answer answer);
  void remove_assignments(NodeId by, const core::RemoveAssignments& removal);

  const core::LeaderRecordRead& leader() const { return leader_read_; }
  const core::IncarnationRecordRead& incarnation_record() const { return incarnation_read_; }
  core::AssignmentTable assignment_table(const core::AssignmentsName& name) const;

  void outage(TimeMs duration_ms);
  bool is_out() const { return event_queue_.now() < out_until_; }
  TimeMs answers_since(NodeId node) const;        // since when it answers this node; in the future if it does not
  void cut_off(NodeId node, TimeMs duration_ms);  // an outage for one node
  void lose_answers(int swaps);                   // the results of the next `swaps` swaps are not known for a while
  // Says which record lose_record() has lost, or which one take_back_record() has set back by some writes.
  enum class Spoiled { nothing, leader, incarnation_record };
  Spoiled lose_record();
  Spoiled take_back_record();
  void clear();  // removes all records and forgets all requests

 private:
  void ask(NodeId by, bool is_swap, std::function<void()> apply, std::function<void()> answer);
  std::vector<core::RankAssignment> assignments_of(const core::AssignmentsName& name) const;
  TimeMs outage_left(NodeId by) const;

  EventQueue& event_queue_;
  Random random_;
  LeaderWritten leader_written_;
  core::LeaderRecordRead leader_read_;
  core::IncarnationRecordRead incarnation_read_;
  std::vector<core::LeaderRecordRead> former_leader_reads_;
  std::vector<core::IncarnationRecordRead> former_incarnation_reads_;
  std::map<core::AssignmentsName, std::map<std::size_t, std::vector<core::RankAssignment>>> assignments_;  // by number
  // The connection of one node. Its requests are carried out in order, and answered in order.
  struct Connection {
    TimeMs applied_at = 0;
    TimeMs answered_at = 0;
    TimeMs late_until = 0;  // no answer comes before this time, because an earlier answer is slow
  };
  std::map<NodeId, Connection> connections_;
  std::map<NodeId, TimeMs> cut_off_until_;
  TimeMs out_until_ = 0;
  int lost_answers_ = 0;
  int era_ = 0;
};

}  // namespace ckpt::sim
