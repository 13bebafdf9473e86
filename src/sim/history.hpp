// The truth about a run's versions, as nobody inside the system can know it: what was captured, where it was, what was
// committed, reported and decided. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "protocol/messages.hpp"
#include "sim/memory.hpp"

namespace ckpt::sim {

using protocol::TimeMs;

class History {
 public:
  explicit History(std::vector<std::string> shards) : shards_(std::move(shards)) {}

  // A trainer sealed it.
  void captured(const PieceInfo& piece);
  const std::set<std::uint64_t>& digests(Version version, const std::string& shard) const;
  // Ranks that share a shard have captured different bytes for it.
  bool ranks_disagree(Version version) const;
  bool ranks_ever_disagreed() const { return ranks_disagreed_; }

  // Nodes that have the piece. One that dropped it is forgotten; one that lost it, with its machine or because it found
  // it damaged, is one that had it.
  void gained(NodeId node, const PieceInfo& piece);
  void dropped(NodeId node, const PieceInfo& piece);
  void lost(NodeId node, const PieceInfo& piece, TimeMs now);
  // A fault destroyed some copy of the version.
  void damaged(Version version) { damaged_.insert(version); }
  bool was_damaged(Version version) const { return damaged_.contains(version); }
  // The smallest number of such nodes over all shards, and a shard that has so few. Who lost it at `since` or later
  // counts, for nobody may know yet; by default, whoever had it ever.
  struct Scarcest {
    std::size_t copies = 0;
    std::string shard;
  };
  Scarcest scarcest(Version version, TimeMs since = 0) const;
  std::size_t copies(Version version) const { return scarcest(version).copies; }
  // A shard of which no group of parity is whole in this way, "" where all have one.
  std::string unprotected(Version version, TimeMs since = 0) const;
  // Every shard was whole somewhere, once.
  bool was_whole(Version version) const { return copies(version) > 0; }
  std::vector<Version> whole_versions() const;

  // The nodes of a life's ranks.
  void hosted(std::uint64_t incarnation, NodeId node) { hosts_[incarnation].insert(node); }
  const std::set<NodeId>& hosts(std::uint64_t incarnation) const;

  // Decisions, in the order in which they were written.
  void decided(std::uint64_t incarnation, const protocol::Decision& decision);
  const protocol::Decision* decision(std::uint64_t incarnation) const;
  // Not among what led to the newest life: that one, or one before it, went on from something older, or anew. A voided
  // version can come back, where a node returns that kept it: then what was done since is void.
  bool is_void(Version version) const;

  // As if the newest life that was decided were not.
  void forget_decision(std::uint64_t incarnation);
  // As if that life and all after it had never been.
  void forget_lives(std::uint64_t from);

  void committed(Version version);
  bool was_committed(Version version) const { return commits_.contains(version); }
  void reported(Version version);
  Version newest_committed() const { return committed_; }  // that is not void
  Version newest_committed_ever() const { return committed_ever_; }
  Version newest_reported() const { return reported_; }  // that is not void
  std::uint64_t incarnation() const { return decisions_.empty() ? 0 : decisions_.rbegin()->first; }

 private:
  std::vector<std::string> shards_;
  std::map<Version, std::map<std::string, std::set<std::uint64_t>>> digests_;
  bool ranks_disagreed_ = false;
  using Holders = std::map<NodeId, TimeMs>;  // and when it lost it, far in the future where it has it
  static constexpr TimeMs has_it = INT64_MAX;
  Version newest_valid_commit() const;
  static std::size_t count(const Holders& holders, TimeMs since);
  std::map<Version, std::map<std::string, Holders>> holders_;
  // Of each group by the first part of its pieces' names: the shards, and who has had the parity of its members.
  struct Group {
    std::vector<std::string> shards;
    std::map<std::uint32_t, Holders> holders;
  };
  std::map<Version, std::map<std::string, Group>> groups_;
  std::set<Version> damaged_;
  std::map<std::uint64_t, std::set<NodeId>> hosts_;
  std::map<std::uint64_t, protocol::Decision> decisions_;
  std::set<Version> commits_;
  Version committed_;
  Version committed_ever_;
  Version reported_;
  Version reported_before_;  // the newest decision
};

}  // namespace ckpt::sim
