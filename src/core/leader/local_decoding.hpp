// Plans which nodes decode lost pieces of the checkpoint to restore from their own memory.
//
// One node could decode a lost piece and pass it on through chains. But it has all inputs only late, so the other nodes
// would get this piece last. A node that restores all shards of the parity group gets the inputs anyway, except parity.
// So it fetches the parity, too, through chains (restore_chain.hpp), and decodes for itself. It receives parity instead
// of the lost piece: about as many bytes, and they are there from the beginning.
//
// A node does so only if this parity has at most a quarter more bytes than the lost pieces. With several parity rows
// and few losses it would have many times as many. Then one node decodes, as it does if no node gets all inputs.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/job_placement.hpp"
#include "core/parity_pieces.hpp"
#include "core/pieces.hpp"

namespace ckpt::core {

struct LocalDecoding {
  std::map<std::string_view, std::vector<NodeId>> decoders;  // by lost piece, borrowed; nodes in ascending order
  std::map<std::string_view, std::vector<NodeId>> readers;   // by parity: nodes that fetch it in order to decode

  bool decodes(NodeId node, std::string_view shard) const;
};

// `lost`: the pieces of the checkpoint that can be decoded; borrowed. `pieces`: what nodes have of it. `fetches`: says
// whether the node obeys orders now.
LocalDecoding plan_local_decoding(const std::map<std::string, CodedPiece>& lost, const Pieces& pieces,
                                  const Places& places, const std::function<bool(NodeId)>& fetches);

}  // namespace ckpt::core
