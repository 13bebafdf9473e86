// Says which nodes capture and store each piece in one incarnation. It applies the strategies of placement/ to the
// job's rank assignments. Pure functions.
//
// If one rank has a main shard, the strategy chooses the nodes that store its copies. If several ranks have the same
// main shard, the shard is cut into one part per rank. As many ranks capture each part as there shall be copies. So no
// node sends copies (REFT, section 4.2). If the options name a replicating strategy, the shard is not cut, and each of
// these ranks captures all of it.
//
// A parity group is a group of nodes. The first shards of all its nodes are encoded together, then the second shards,
// and so on. Private shards are much smaller than main shards, so they are encoded apart from main shards. If there are
// few nodes, a group is smaller than the options say. It still tolerates the same number of losses, but at least one of
// its nodes must be left.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/messages.hpp"
#include "core/parity_pieces.hpp"

namespace ckpt::core {

// The nodes of one piece.
struct Place {
  std::vector<NodeId> owners;           // nodes whose ranks restore the piece
  std::vector<NodeId> capturers;        // nodes whose ranks capture the piece
  std::vector<NodeId> holders;          // nodes that must have the piece before the checkpoint is committed
  std::optional<ParityOf> parity = {};  // set for parity, which nobody captures or restores from
};
using Places = std::unordered_map<std::string, Place>;  // by the piece's name

struct JobPlacement {
  Places places;
  std::map<Rank, Share> shares;
  std::string notice;  // a sentence for people: which copies share a failure domain; "" if none do
  // A main shard that only ranks of one node have, and that node. The name is "" if there is no such shard.
  std::string lone_shard;
  NodeId lone_node = no_node;
};

// `assignments` are in order of rank, without gaps. `strategy`: none if the options name none.
JobPlacement arrange(const std::vector<RankAssignment>& assignments, std::optional<placement::Strategy> strategy,
                     const placement::Protection& protection);

// Returns where the pieces of the restored checkpoint belong until this incarnation has its own commit. Returns nothing
// if all places are those of `placement_of_job`.
// - `cuts` says into how many parts that checkpoint has cut each main shard. If `placement_of_job` cuts a shard into as
//   many parts, their places are the same. Otherwise all nodes that restore the shard must have all its parts.
// - The first `own_ranks` ranks restore their own private shards. All other ranks restore that of rank 0.
// - If ranks take over shards, only these shards have places: on all nodes that hold the private shards of these ranks.
std::optional<Places> places_with(const std::vector<Cut>& cuts, std::uint32_t own_ranks,
                                  const std::vector<RankAssignment>& assignments, const JobPlacement& placement_of_job);

}  // namespace ckpt::core
