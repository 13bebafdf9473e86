// Node is the protocol's core for one agent. It takes events and returns effects (events.hpp). It contains a Worker,
// and while this node leads also a Leader. It is deterministic: the same events in the same order give the same
// effects. It uses no clock, file or socket. Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/events.hpp"

namespace ckpt::core {

// What an agent found in its arena when it started.
struct Recovered {
  struct Slot {
    SlotRef slot;
    PieceInfo piece;
    bool whole = false;  // true: the slot is sealed, and its piece is valid and not dropped; false: the slot is free
  };
  // A grant that a rank's control page still has. The trainer may be alive and writing. So the slots stay granted, and
  // the rank gets no other grant, until the trainer has captured into them or is proven dead.
  struct Granted {
    Rank rank = 0;
    std::vector<SlotRef> slots;         // empty: the trainer has captured into them
    std::optional<SlotRef> spare = {};  // as GrantSlots::spare; it stays granted after a capture
  };
  std::vector<Slot> slots;  // all slots of all segments, free ones included
  std::vector<Granted> granted;
  CheckpointId highest_commit;  // newest commit that the node has ever known
  CheckpointId newest_seen;     // newest checkpoint of which the node has ever had a whole piece
  std::uint64_t epoch = 0;      // newest epoch that the node has obeyed
  CheckpointId newest_damaged;  // newest checkpoint of which damage has destroyed a piece here
};

// The node's state, for `ckptctl status` and for the simulator's checks.
struct NodeStatus {
  NodeId node = 0;
  bool is_leader = false;
  NodeId leader = no_node;
  NodeId relay = no_node;  // the relay that the node reports through
  std::uint64_t epoch = 0;
  std::uint64_t incarnation = 0;
  Decision decision;
  CheckpointId committed;
  CheckpointId highest_commit;
  std::int64_t resume_at = 0;
  std::uint32_t copies_now = 0;
  std::uint32_t parity_now = 0;
  std::string alarm;
  std::vector<RankReport> ranks;
  std::vector<PieceInfo> pieces;
  std::vector<NodeId> nodes_present;  // nodes that report; only on the leader, empty on other nodes
  std::vector<Rank> missing_ranks;
  std::vector<NodeId> missing_nodes;
  std::vector<Replacement> replacements;
  CheckpointId stored;
  std::uint64_t stored_skipped = 0;
  std::string storage_trouble;
  Suspicion suspicion;         // which ranks hold training up
  Halt halt;                   // of this incarnation
  std::string record_trouble;  // why the node ignores a record of the coordination store; "" if it does not
};

class Node {
 public:
  // `agent_id` identifies this run of the agent. Later runs have larger ids.
  Node(const Config& config, std::uint64_t agent_id, const Recovered& recovered);
  ~Node();

  Effects handle(const Event& event, TimeMs now);

  // When the driver must post an extra Tick, because the core has postponed some work. None: no extra Tick is needed.
  std::optional<TimeMs> tick_wanted_at() const;

  NodeStatus status() const;
  // Returns whether the job is protected, as far as this node knows.
  Health health(TimeMs now) const;
  // Returns the slot that has this piece whole, so that others may read it. Null if there is none. The pointer is valid
  // until the next handle().
  const SlotRef* find(const std::string& shard, CheckpointId checkpoint) const;
  // Returns the pieces that this rank is waiting to restore. None if the rank does not wait, or takes over shards.
  AwaitedPieces awaited(Rank rank) const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ckpt::core
