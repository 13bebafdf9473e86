// History records the truth about a simulated run's checkpoints, for the simulator's checks: which pieces were captured
// and where they were, and what was committed, reported and decided. No simulated node knows all of this. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/messages.hpp"
#include "sim/memory.hpp"
#include "sim/settings.hpp"

namespace ckpt::sim {

using core::TimeMs;

class History {
 public:
  explicit History(const Settings& settings) : settings_(&settings) {}

  using Shards = std::vector<std::string>;
  // Returns the names of the checkpoint's shards: all main shards, and the private shards of ranks 0 to `ranks` - 1. If
  // `ranks` is not given, it is own_ranks(checkpoint).
  const Shards& shards(CheckpointId checkpoint, std::optional<core::Rank> ranks = {}) const;
  core::Rank world_size(std::uint64_t incarnation) const;
  core::Rank world_size(CheckpointId checkpoint) const { return world_size(checkpoint.incarnation()); }
  // The main shards of the incarnation's ranks, by rank.
  Shards main_shards(std::uint64_t incarnation) const;
  // Whether ranks of the incarnation take over shards of the checkpoint: another number of ranks captured it, or one of
  // them needs a main shard that it does not have. Only if the job resizes.
  bool takes_over(std::uint64_t incarnation, CheckpointId checkpoint) const;
  // How many private shards belong to the checkpoint: those of the ranks that captured it. If fewer ranks have restored
  // it, only those of these ranks.
  core::Rank own_ranks(CheckpointId checkpoint) const;

  // A trainer has sealed this piece.
  void captured(const PieceInfo& piece);
  const std::set<std::uint64_t>& digests(CheckpointId checkpoint, const std::string& shard) const;
  // True if ranks that share a shard have captured different bytes of it.
  bool ranks_disagree(CheckpointId checkpoint) const;
  bool ranks_ever_disagreed() const { return ranks_disagreed_; }

  // Record which nodes have a piece. A node that dropped the piece is forgotten. A node that lost the piece, with its
  // machine or because it found damage, stays on record as one that had it.
  void gained(NodeId node, const PieceInfo& piece);
  void dropped(NodeId node, const PieceInfo& piece);
  void lost(NodeId node, const PieceInfo& piece, TimeMs now);
  // A fault destroyed some copy of the checkpoint.
  void damaged(CheckpointId checkpoint) { damaged_.insert(checkpoint); }
  bool was_damaged(CheckpointId checkpoint) const { return damaged_.contains(checkpoint); }
  // A shard of a checkpoint, and how many nodes have it.
  struct Scarcest {
    std::size_t copies = 0;
    std::string shard;
  };
  // Returns the one of `shards` that the fewest nodes have. A node that lost the shard at the time `since` or later
  // still counts, because others may not know of the loss yet. With `since` 0, all nodes that ever had it count.
  Scarcest scarcest(CheckpointId checkpoint, const Shards& shards, TimeMs since = 0) const;
  std::size_t copies(CheckpointId checkpoint) const { return scarcest(checkpoint, shards(checkpoint)).copies; }
  // Returns one of these shards that is in no complete parity group, or "" if all are in one. A group is complete if
  // every parity piece of it is on a node. Nodes count as in scarcest().
  std::string unprotected(CheckpointId checkpoint, const Shards& shards, TimeMs since = 0) const;
  // True if every shard was once whole on some node.
  bool was_whole(CheckpointId checkpoint) const { return copies(checkpoint) > 0; }
  std::vector<CheckpointId> complete_checkpoints() const;

  // A rank of the incarnation runs on this node.
  void hosted(std::uint64_t incarnation, NodeId node) { hosts_[incarnation].insert(node); }
  const std::set<NodeId>& hosts(std::uint64_t incarnation) const;

  // Decisions, in the order in which they were written.
  // `main_shards`: of its ranks, as far as the store still has them.
  void decided(std::uint64_t incarnation, const core::Decision& decision, core::Rank world_size, core::Rank own_ranks,
               const Shards& main_shards);
  const core::Decision* decision(std::uint64_t incarnation) const;
  // True if the newest incarnation does not build on this checkpoint, because it or an incarnation before it restored
  // an older checkpoint or started anew. A void checkpoint can become valid again: if a node that kept it returns and
  // the job restores it, then the checkpoints made since are void.
  bool is_void(CheckpointId checkpoint) const;

  // Acts as if the newest decided incarnation were undecided.
  void forget_decision(std::uint64_t incarnation);
  // Removes the incarnation `from` and all later ones from this history.
  void forget_incarnations(std::uint64_t from);

  void committed(CheckpointId checkpoint);
  bool was_committed(CheckpointId checkpoint) const { return commits_.contains(checkpoint); }
  void reported(CheckpointId checkpoint);
  CheckpointId newest_committed() const { return committed_; }            // the newest that is not void
  CheckpointId newest_committed_ever() const { return committed_ever_; }  // void ones included
  CheckpointId newest_reported() const { return reported_; }              // the newest that is not void
  std::uint64_t incarnation() const { return decisions_.empty() ? 0 : decisions_.rbegin()->first; }

 private:
  const Settings* settings_;
  // By incarnation and number of private shards. Empty after each decision.
  mutable std::map<std::pair<std::uint64_t, core::Rank>, Shards> shards_;
  std::map<std::uint64_t, core::Rank> world_sizes_;  // by incarnation
  std::map<std::uint64_t, Shards> main_shards_;      // by incarnation, if it was decided
  // By incarnation: how many private shards of the checkpoint that it restored are not void.
  std::map<std::uint64_t, core::Rank> own_ranks_;
  std::map<CheckpointId, std::map<std::string, std::set<std::uint64_t>>> digests_;
  bool ranks_disagreed_ = false;
  using Holders = std::map<NodeId, TimeMs>;  // when the node lost the piece; has_it if it has the piece
  static constexpr TimeMs has_it = INT64_MAX;
  CheckpointId newest_valid_commit() const;
  static std::size_t count(const Holders& holders, TimeMs since);
  std::map<CheckpointId, std::map<std::string, Holders>> holders_;
  // The shards of a parity group, and for each member's parity the nodes that have had it. The names of its pieces
  // begin with the group's name.
  struct Group {
    std::vector<std::string> shards;
    std::map<std::uint32_t, Holders> holders;
  };
  std::map<CheckpointId, std::map<std::string, Group>> groups_;
  std::set<CheckpointId> damaged_;
  std::map<std::uint64_t, std::set<NodeId>> hosts_;
  std::map<std::uint64_t, core::Decision> decisions_;
  std::set<CheckpointId> commits_;
  CheckpointId committed_;
  CheckpointId committed_ever_;
  CheckpointId reported_;
  CheckpointId reported_before_;  // reported_ when the newest decision was made
};

}  // namespace ckpt::sim
