// JobView is all that the leader knows about the job at this moment. The parts of the leader share it. Each part reads
// all of it, and changes only the fields that its constructor takes by reference.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/leader/incarnation_placement.hpp"
#include "core/leader/rank_assignments.hpp"
#include "core/leader/restore_decision.hpp"
#include "core/relay.hpp"

namespace ckpt::core {

// A node, as the leader knows it from the node's last report.
struct Peer {
  Report report;
  NodeId via = no_node;  // the node that brought the report; the answer goes there
  // When the report came. After a pause of the leader: the end of the pause, if the node was present before it.
  TimeMs received_at = 0;
  std::uint64_t obeyed = 0;  // newest directive that the node says it has
  TimeMs obeyed_at = 0;      // when the node first reported `obeyed`
};

// The trainer that runs a rank in this incarnation, and the trainer's node.
struct Binding {
  NodeId node = 0;
  const Peer* peer = nullptr;  // of `node`; borrowed from JobView::peers, which never removes a peer
  RankReport rank;
};

struct JobView {
  JobView(const Config& node_config, std::uint64_t term, TimeMs now)
      : config(node_config), epoch(term), elected_at(now) {}

  const Config config;
  const std::uint64_t epoch;
  const TimeMs elected_at;
  std::optional<IncarnationRecord> record;  // none: not read yet; most queries need it
  AssignmentTable assignment_table;         // of the newest incarnation that began, once `record` names it
  AssignmentsName given_up_assignments;     // the store has lost these, and the leader no longer waits for them
  std::map<NodeId, Peer> peers;
  std::vector<const Report*> present;  // reports of the present nodes, as of this reconciliation
  std::vector<NodeId> missing;         // members that are not present
  Groups groups;
  std::map<Rank, Binding> bindings;  // of record->incarnation
  IncarnationPlacement places;       // empty until the incarnation is decided
  Inventory inventory;               // of `present`; borrows from `peers`
  std::string alarm;                 // silent data corruption or the like, "" if none

  bool is_present(const Peer& peer, TimeMs now) const;
  bool is_here(NodeId node, TimeMs now) const;
  bool is_replacement(const Report& report) const;
  bool has(NodeId node, const std::string& shard, CheckpointId checkpoint) const;
  bool has_lost_assignments() const {
    return given_up_assignments.incarnation != 0 && given_up_assignments == record->assignments;
  }
  bool is_undecided() const { return record->decision.verdict == Verdict::undecided; }
  bool has_begun() const {
    return record->decision.verdict == Verdict::fresh || record->decision.verdict == Verdict::restore;
  }
  bool is_complete_incarnation() const { return record->incarnation != 0 && bindings.size() == record->world_size; }
  bool all_wait() const;
  std::int64_t furthest_attempted() const;  // -1: no rank offered an iteration yet
};

// True if these pieces of one checkpoint are all that a commit needs:
// - Every node has each piece that `places` gives it.
// - All copies of a piece have the same digest and length.
// - All parity was computed from exactly these shards.
bool is_complete(const Pieces& pieces, const Places& places);

}  // namespace ckpt::core
