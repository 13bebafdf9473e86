// The coordination store: two records, each with a revision that grows by one with every write, changed by
// compare-and-swap, and the rank assignments of incarnations, in records of which few are enough here to make several.
// What is asked during an outage is answered after it, whether it was carried out before or after. Answers to one node
// keep their order. Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "protocol/events.hpp"
#include "protocol/rank_assignments.hpp"
#include "sim/event_queue.hpp"
#include "sim/random.hpp"

namespace ckpt::sim {

using protocol::NodeId;

class Store {
 public:
  using Answer = std::function<void(const protocol::Event& read)>;
  using LeaderWritten = std::function<void(NodeId by, const protocol::LeaderRecordRead& now)>;
  using IncarnationWritten =
      std::function<void(const protocol::IncarnationRecordRead& before, const protocol::IncarnationRecordRead& now)>;

  Store(EventQueue& event_queue, Random random, LeaderWritten leader_written);

  // Each ends in one call of `answer` with the record as it then is.
  void read_leader(NodeId by, Answer answer);
  void read_incarnation(NodeId by, Answer answer);
  void swap(NodeId by, const protocol::SwapLeaderRecord& swap, Answer answer);
  // Of an incarnation whose rank assignments are written. Writing them comes before, a record at a time, and ends in a
  // call of `done`.
  void swap(NodeId by, const protocol::SwapIncarnationRecord& swap, IncarnationWritten written, Answer answer);
  static constexpr std::size_t assignments_per_record = 3;
  void write_assignments(NodeId by, const protocol::AssignmentsName& name, std::size_t number,
                         std::vector<protocol::RankAssignment> assignments, std::function<void()> done);
  void read_assignments(NodeId by, const protocol::AssignmentsName& name, Answer answer);
  void remove_assignments(NodeId by, const protocol::RemoveAssignments& removal);

  const protocol::LeaderRecordRead& leader() const { return leader_read_; }
  const protocol::IncarnationRecordRead& incarnation_record() const { return incarnation_read_; }
  protocol::AssignmentTable assignment_table(const protocol::AssignmentsName& name) const;

  void outage(TimeMs duration_ms);
  bool is_out() const { return event_queue_.now() < out_until_; }
  TimeMs answers_since(NodeId node) const;        // in the future while it does not
  void cut_off(NodeId node, TimeMs duration_ms);  // an outage for one node
  void lose_answers(int swaps);                   // the next so many swaps succeed or fail unheard for a while
  // One record is gone, or again what it was some writes ago. Tells which.
  enum class Spoiled { nothing, leader, incarnation_record };
  Spoiled lose_record();
  Spoiled take_back_record();
  void clear();  // all records are removed, and all requests forgotten

 private:
  void ask(NodeId by, bool is_swap, std::function<void()> apply, std::function<void()> answer);
  std::vector<protocol::RankAssignment> assignments_of(const protocol::AssignmentsName& name) const;
  TimeMs outage_left(NodeId by) const;

  EventQueue& event_queue_;
  Random random_;
  LeaderWritten leader_written_;
  protocol::LeaderRecordRead leader_read_;
  protocol::IncarnationRecordRead incarnation_read_;
  std::vector<protocol::LeaderRecordRead> former_leader_reads_;
  std::vector<protocol::IncarnationRecordRead> former_incarnation_reads_;
  std::map<protocol::AssignmentsName, std::map<std::size_t, std::vector<protocol::RankAssignment>>>
      assignments_;  // by number
  // A node's requests go through one connection: carried out and answered in order.
  struct Connection {
    TimeMs applied_at = 0;
    TimeMs answered_at = 0;
    TimeMs late_until = 0;  // an answer that took long held up all that came after it
  };
  std::map<NodeId, Connection> connections_;
  std::map<NodeId, TimeMs> cut_off_until_;
  TimeMs out_until_ = 0;
  int lost_answers_ = 0;
  int era_ = 0;
};

}  // namespace ckpt::sim
