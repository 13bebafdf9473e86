// Says which nodes capture and store each piece in one incarnation. It applies the strategies of placement/ to the
// job's rank assignments. Pure functions.
//
// If one rank names a main shard, the strategy chooses the nodes that store its copies. If several ranks name the same
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
  // A main shard that ranks of one node alone name, and that node. The name is "" if there is none.
  std::string lone_shard;
  NodeId lone_node = no_node;
};

// `assignments` are in order of rank, without gaps. `strategy`: none if the options name none.
JobPlacement arrange(const std::vector<RankAssignment>& assignments, std::optional<placement::Strategy> strategy,
                     const placement::Protection& protection);

// Returns where the pieces of the restored checkpoint belong until this incarnation has its own commit. `cuts` says
// into how many parts that checkpoint cut the main shards. If `placement_of_job` cuts a shard into as many parts, its
// places apply. All parts of other shards must be on all nodes that restore the shard. `own_ranks`: how many ranks
// restore a private shard of their own. The ranks from this number on restore rank 0's. If ranks take over shards,
// these shards must be on the nodes of these ranks, and on the nodes that hold copies for them. Returns nothing if all
// places are those of `placement_of_job`.
std::optional<Places> places_with(const std::vector<Cut>& cuts, std::uint32_t own_ranks,
                                  const std::vector<RankAssignment>& assignments, const JobPlacement& placement_of_job);

}  // namespace ckpt::core
