// What the leader knows now. Its parts share this: each part changes only the fields that it owns, by the references
// that its constructor takes, and reads the others.
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

// A node, as last heard.
struct Peer {
  Report report;
  NodeId via = no_node;      // which node brought it: the answer goes there
  TimeMs received_at = 0;    // or when this leader's own pause ended, if it was not missed before
  std::uint64_t obeyed = 0;  // newest directive that the node reports to have
  TimeMs obeyed_at = 0;      // when it first reported that
};

// A rank's trainer in this incarnation, and its node.
struct Binding {
  NodeId node = 0;
  const Peer* peer = nullptr;  // that node; borrowed from JobView::peers, which never drops one
  RankReport rank;
};

struct JobView {
  JobView(const Config& node_config, std::uint64_t term, TimeMs now)
      : config(node_config), epoch(term), elected_at(now) {}

  const Config config;
  const std::uint64_t epoch;
  const TimeMs elected_at;
  std::optional<IncarnationRecord> record;  // none: not read yet; where a query needs it, it must be there
  AssignmentTable assignment_table;         // of the newest incarnation that began, once `record` names that one
  AssignmentsName given_up_assignments;     // these have not come back in time
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

// All places have their piece, and the pieces of a shard agree.
bool is_complete(const Pieces& pieces, const Places& places);

}  // namespace ckpt::core
