// IncarnationPlacement tells the leader which node captures, holds and restores which piece in one incarnation. It is
// computed once, from the incarnation's record. Later, replacements only take the places of lost members.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/job_placement.hpp"
#include "core/leader/rank_assignments.hpp"
#include "core/messages.hpp"

namespace ckpt::core {

// What a node does with one piece. `owns`: its ranks restore the piece.
struct Role {
  bool owns = false;
  bool captures = false;
  bool holds = false;
};
Role role_of(NodeId node, const Place& place);

class IncarnationPlacement {
 public:
  struct Task {
    const Places::value_type* place = nullptr;  // with the name of the piece
    Role role;
  };
  using Tasks = std::vector<Task>;

  IncarnationPlacement() = default;  // no incarnation yet
  IncarnationPlacement(const IncarnationRecord& record, const AssignmentTable& assignment_table);
  IncarnationPlacement(IncarnationPlacement&&) = default;
  IncarnationPlacement& operator=(IncarnationPlacement&&) = default;

  // Replaces all earlier replacements.
  void put_in_replacements(const std::vector<Replacement>& replacements);

  bool is_arranged() const { return !own_.arranged.empty(); }
  const std::string& notice() const { return notice_; }
  // True if each main shard is on ranks of two nodes or more. Otherwise lone_shard() is only on ranks of lone_node().
  bool is_replicated() const { return is_arranged() && lone_shard_.empty(); }
  const std::string& lone_shard() const { return lone_shard_; }
  NodeId lone_node() const { return lone_node_; }
  // What the rank captures. Null before is_arranged().
  const Share* share_of(Rank rank) const;
  // The ranks with which the rank exchanges copies from GPU to GPU. Null before is_arranged(), and for a rank that did
  // not ask for GPU replication.
  const ReplicationGroup* replication_of(Rank rank) const;
  // The private shard that the rank restores because it has none of its own; "" if it has its own.
  std::string adopted_by(Rank rank) const { return rank < own_ranks_ ? "" : adopted_; }
  // The shards that the rank takes over instead of shards of its own; see RankAssignment.
  const std::vector<Cut>& taken_by(Rank rank) const;

  // Where the pieces that this incarnation captures belong.
  const Places& own() const { return own_.now(); }
  // Where the pieces of `checkpoint` belong. The restored checkpoint may have other places than own(): it may be cut
  // into other parts, or come from another number of ranks.
  const Places& of(CheckpointId checkpoint) const { return layout_of(checkpoint).now(); }
  // The tasks of a node, sorted by the names of the pieces: which pieces it captures, which it holds for others, and
  // which its ranks restore. own_of(): for checkpoints of this incarnation. of(): for any checkpoint.
  const Tasks& own_of(NodeId node) const { return own_.tasks_of(node); }
  const Tasks& of(NodeId node, CheckpointId checkpoint) const { return layout_of(checkpoint).tasks_of(node); }

 private:
  struct Layout {
    Places arranged;
    std::optional<Places> with_replacements;  // while there are replacements
    std::unordered_map<NodeId, Tasks> tasks;  // of now()

    const Places& now() const { return with_replacements ? *with_replacements : arranged; }
    const Tasks& tasks_of(NodeId node) const;
    void put_in_replacements(const std::vector<Replacement>& replacements);
  };
  const Layout& layout_of(CheckpointId checkpoint) const {
    return restored_ && checkpoint == began_from_ ? *restored_ : own_;
  }

  Layout own_;
  std::optional<Layout> restored_;  // only if the restored checkpoint has other places than own()
  CheckpointId began_from_;
  std::uint32_t own_ranks_ = 0;  // ranks below this number restore a private shard of their own
  std::string adopted_;          // rank 0's, which the others restore
  std::unordered_map<Rank, std::vector<Cut>> takes_;
  std::unordered_map<Rank, Share> shares_;
  std::map<Rank, ReplicationGroup> replications_;
  std::vector<Replacement> replacements_;
  std::string notice_;
  std::string lone_shard_;
  NodeId lone_node_ = no_node;
};

}  // namespace ckpt::core
