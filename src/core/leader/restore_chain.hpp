// Plans from where nodes get a piece that several of them restore. If all of them asked the nodes that have it, these
// might send the piece several times, one copy after the other. So the nodes form chains, one for each node that has
// the piece. The first node of a chain fetches it from that node, each other node from the node before it, which sends
// on what it has received so far. Then no node sends the piece more than once, and all links carry it at the same time.
//
// The chains of a piece follow the ring of node ids, from one node on, which stands in the order to fetch (chain_from).
// Behind the highest id follows the lowest. If each node has another part of a shard, each part begins its way around
// the ring at the node that has it. Then each node gets all other parts from the node before it, over one connection.
#pragma once

#include <vector>

#include "core/job_placement.hpp"
#include "core/pieces.hpp"
#include "core/types.hpp"

namespace ckpt::core {

// The node at which the chains of a piece begin: the first one that captured the piece or must hold it, and has it. If
// there is none, any node that has it.
NodeId begin_of_chain(const Place& place, const Holders& holders);

// The sources of `node`, best first, at most sources_max: the node before it in its chain, if there is one, then nodes
// that have the piece. `fetching`: the nodes that get the piece now, `node` among them, in ascending order. Empty if
// `node` is the only one.
std::vector<NodeId> sources_in_chain(NodeId node, NodeId chain_from, const std::vector<NodeId>& fetching,
                                     const Holders& holders);

}  // namespace ckpt::core
