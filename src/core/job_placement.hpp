// Which nodes capture and hold what in one incarnation: placement/ applied to the job's rank assignments. Pure.
//
// A main shard that one rank names goes to the nodes that the strategy chooses. By default, a main shard that several
// ranks name is cut into one part per rank. As many ranks capture each part as there shall be copies, so nothing is
// sent (REFT, section 4.2). If the options name a replicating strategy, every rank that names a shard captures all of
// it.
//
// Parity spans nodes: the first shards of a group's members form one group of shards, the second ones the next, and so
// on. Private shards, which are much smaller, form groups of their own. A group may be smaller than the options say. It
// then tolerates the same number of losses, or all but one of its members if that is less.
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
// places there. Any other shard stays, whole, on the nodes that restore from it until the incarnation has a commit of
// its own. From rank `own_ranks` on, ranks have no private shard in it: they restore from rank 0's. Nothing if all
// shards have their places in `placement_of_job`.
std::optional<Places> places_with(const std::vector<Cut>& cuts, std::uint32_t own_ranks,
                                  const std::vector<RankAssignment>& assignments, const JobPlacement& placement_of_job);

}  // namespace ckpt::core
