// Who captures and who holds what in one incarnation: placement/ applied to the ranks as they sit on the nodes. Pure.
//
// A main shard that one rank names goes to the nodes that the strategy gives it. One that several name is cut into a
// part per rank, and each part is captured by as many of them as there shall be copies: nothing is sent (REFT,
// section 4.2). So it is by default; with a replicating strategy asked for by name, every rank that names a shard
// captures all of it.
//
// Parity is kept across nodes: the first shards of the members of a group form a group of shards, the second ones the
// next, and so on; private shards, which are much smaller, among themselves. A group may be smaller than was asked for,
// and then tolerates as many losses, or all but one of its members.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/messages.hpp"
#include "protocol/parity_pieces.hpp"

namespace ckpt::protocol {

struct Place {
  std::vector<NodeId> owners;           // whose ranks restore from it
  std::vector<NodeId> capturers;        // whose ranks capture it
  std::vector<NodeId> holders;          // that must have it for a commit
  std::optional<ParityOf> parity = {};  // nobody captures it, or restores from it
};
using Places = std::unordered_map<std::string, Place>;  // by part

struct JobPlacement {
  Places places;
  std::map<Rank, Share> shares;
  std::string notice;  // for people: copies that could not be kept in different failure domains, "" if none
};

// `assignments` by rank, without gaps.
JobPlacement arrange(const std::vector<RankAssignment>& assignments, std::optional<placement::Strategy> strategy,
                     const placement::Protection& protection);

// Where a checkpoint belongs that was stored with these cuts. What is cut as in `placement_of_job` has its places
// there; else those who restore from it keep all of it until the incarnation has a commit of its own. Nothing where all
// of it has its places there.
std::optional<Places> places_with(const std::vector<Cut>& cuts, const std::vector<RankAssignment>& assignments,
                                  const JobPlacement& placement_of_job);

}  // namespace ckpt::protocol
