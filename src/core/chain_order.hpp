// The order of nodes in the chains of a restore (leader/restore_chain.hpp).
#pragma once

#include "core/types.hpp"

namespace ckpt::core {

// True if `node` comes after `other` on the ring of node ids that begins at `chain_from`: behind the highest id follows
// the lowest.
inline bool comes_after(NodeId node, NodeId other, NodeId chain_from) { return node - chain_from > other - chain_from; }

}  // namespace ckpt::core
