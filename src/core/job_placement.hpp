// Says which nodes capture and store each piece in one incarnation. It applies the strategies of placement/ to the
// job's rank assignments. Pure functions.
//
// If one rank names a main shard, the strategy chooses the nodes that store its copies. If several ranks name the same
// main shard, it is cut into one part per rank. As many ranks capture each part as there shall be copies, so nothing is
// sent (REFT, section 4.2). If the options name a replicating strategy, the shard is not cut, and each of these ranks
// captures all of it.
//
// A parity group is a group of nodes. The first shard of each node is encoded together with the first shards of the
// others, the second with the second, and so on. Private shards are much smaller than main shards, so they are encoded
// apart from them. A group may be smaller than the options say. It then tolerates the same number of losses, but at
// most all but one of its members.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/messages.hpp"
#include "core/parity_pieces.hpp"

namespace ckpt::core {

struct Place {
  std::vector<NodeId> owners;           // nodes whose ranks restore from it
  std::vector<NodeId> capturers;        // nodes whose ranks capture it
  std::vector<NodeId> holders;          // nodes that must have it for a commit
  std::optional<ParityOf> parity = {};  // set for parity, which nobody captures or restores from
};
using Places = std::unordered_map<std::string, Place>;  // by part

struct JobPlacement {
  Places places;
  std::map<Rank, Share> shares;
  std::string notice;  // for people: which copies share a failure domain, "" if none
};

// `assignments` in order of rank, without gaps.
JobPlacement arrange(const std::vector<RankAssignment>& assignments, std::optional<placement::Strategy> strategy,
                     const placement::Protection& protection);

// The places of a checkpoint that was stored with these cuts. A shard that is cut as in `placement_of_job` has its
// places there. Any other shard stays whole, on the nodes that restore from it, until the incarnation has its own
// commit. Ranks from `own_ranks` on have no private shard in the checkpoint: they restore from rank 0's. Returns
// nothing if all shards have their places in `placement_of_job`.
std::optional<Places> places_with(const std::vector<Cut>& cuts, std::uint32_t own_ranks,
                                  const std::vector<RankAssignment>& assignments, const JobPlacement& placement_of_job);

}  // namespace ckpt::core
