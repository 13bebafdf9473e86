// History records the truth about a simulated run's checkpoints, for the simulator's checks: what was captured, where
// it was, what was committed, reported and decided. No simulated node knows all of this. Not thread-safe.
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
  // Names the checkpoint's shards: all main shards, and the private shards of the first `own` ranks. Without `own`:
  // own_ranks(checkpoint) private shards. They are fewer than the world size if fewer ranks have restored the
  // checkpoint.
  const Shards& shards(CheckpointId checkpoint, std::optional<core::Rank> own = {}) const;
  core::Rank world_size(std::uint64_t incarnation) const;
  core::Rank world_size(CheckpointId checkpoint) const { return world_size(checkpoint.incarnation()); }
  core::Rank own_ranks(CheckpointId checkpoint) const;  // number of private shards that are not void

  // A trainer sealed it.
  void captured(const PieceInfo& piece);
  const std::set<std::uint64_t>& digests(CheckpointId checkpoint, const std::string& shard) const;
  // Ranks that share a shard have captured different bytes for it.
  bool ranks_disagree(CheckpointId checkpoint) const;
  bool ranks_ever_disagreed() const { return ranks_disagreed_; }

  // Records which nodes have the piece. A node that dropped it is forgotten. A node that lost it, with its machine or
  // because it found damage, stays on record as one that had it.
  void gained(NodeId node, const PieceInfo& piece);
  void dropped(NodeId node, const PieceInfo& piece);
  void lost(NodeId node, const PieceInfo& piece, TimeMs now);
  // A fault destroyed some copy of the checkpoint.
  void damaged(CheckpointId checkpoint) { damaged_.insert(checkpoint); }
  bool was_damaged(CheckpointId checkpoint) const { return damaged_.contains(checkpoint); }
  // Of all these shards, the one that the fewest nodes have, and how many have it. A node that lost the piece at
  // `since` or later still counts, because others may not know yet. By default every node counts that ever had it.
  struct Scarcest {
    std::size_t copies = 0;
    std::string shard;
  };
  Scarcest scarcest(CheckpointId checkpoint, const Shards& shards, TimeMs since = 0) const;
  std::size_t copies(CheckpointId checkpoint) const { return scarcest(checkpoint, shards(checkpoint)).copies; }
  // A shard of which no parity group is whole in this sense; "" if every shard has one.
  std::string unprotected(CheckpointId checkpoint, const Shards& shards, TimeMs since = 0) const;
  // True if every shard was once whole somewhere.
  bool was_whole(CheckpointId checkpoint) const { return copies(checkpoint) > 0; }
  std::vector<CheckpointId> complete_checkpoints() const;

  // The nodes that the ranks of an incarnation ran on.
  void hosted(std::uint64_t incarnation, NodeId node) { hosts_[incarnation].insert(node); }
  const std::set<NodeId>& hosts(std::uint64_t incarnation) const;

  // Decisions, in the order in which they were written.
  void decided(std::uint64_t incarnation, const core::Decision& decision, core::Rank world_size, core::Rank own_ranks);
  const core::Decision* decision(std::uint64_t incarnation) const;
  // True if the newest incarnation does not build on this checkpoint: that incarnation, or one before it, went on from
  // something older or started anew. A void checkpoint can become valid again. If a node that kept it returns, what was
  // done since is void instead.
  bool is_void(CheckpointId checkpoint) const;

  // Acts as if the newest decided incarnation were undecided.
  void forget_decision(std::uint64_t incarnation);
  // Removes the incarnation `from` and all later ones from this history.
  void forget_incarnations(std::uint64_t from);

  void committed(CheckpointId checkpoint);
  bool was_committed(CheckpointId checkpoint) const { return commits_.contains(checkpoint); }
  void reported(CheckpointId checkpoint);
  CheckpointId newest_committed() const { return committed_; }  // that is not void
  CheckpointId newest_committed_ever() const { return committed_ever_; }
  CheckpointId newest_reported() const { return reported_; }  // that is not void
  std::uint64_t incarnation() const { return decisions_.empty() ? 0 : decisions_.rbegin()->first; }

 private:
  const Settings* settings_;
  mutable std::map<std::pair<core::Rank, core::Rank>, Shards> shards_;  // by world size and `own`
  std::map<std::uint64_t, core::Rank> world_sizes_;                     // by incarnation
  std::map<std::uint64_t, core::Rank> own_ranks_;                       // likewise, of the checkpoint that it restored
  std::map<CheckpointId, std::map<std::string, std::set<std::uint64_t>>> digests_;
  bool ranks_disagreed_ = false;
  using Holders = std::map<NodeId, TimeMs>;  // and when the node lost it; far in the future while it has it
  static constexpr TimeMs has_it = INT64_MAX;
  CheckpointId newest_valid_commit() const;
  static std::size_t count(const Holders& holders, TimeMs since);
  std::map<CheckpointId, std::map<std::string, Holders>> holders_;
  // The shards of a parity group, and the nodes that have had the parity of each member. Groups go by name, the first
  // part of their pieces' names.
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
  CheckpointId reported_before_;  // the newest decision
};

}  // namespace ckpt::sim
