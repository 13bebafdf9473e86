// Plans from where nodes get a piece that several of them restore. If all of them asked the nodes that have it, these
// might send the piece several times, one copy after the other. So the nodes form chains, one for each node that has
// the piece. The first node of a chain fetches it from that node, each other node from the node before it, which sends
// on what it has received so far. Then no node sends the piece more than once, and all links carry it at the same time.
//
// Along a chain, node ids ascend. So a node waits for bytes only from nodes with lower ids and from nodes that have the
// piece.
#pragma once

#include <vector>

#include "core/pieces.hpp"
#include "core/types.hpp"

namespace ckpt::core {

// The sources of `node`, best first, at most sources_max: the node before it in its chain, if there is one, then nodes
// that have the piece. `fetching`: the nodes that get the piece now, `node` among them, in ascending order. Empty if
// `node` is the only one.
std::vector<NodeId> sources_in_chain(NodeId node, const std::vector<NodeId>& fetching, const Holders& holders);

}  // namespace ckpt::core
