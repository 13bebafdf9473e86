// Group placement (GEMINI, section 4, Algorithm 1): who stores whose copies. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace ckpt::placement {

// The nodes that store the shards of `node`, itself first: `copies` of them, or all when there are fewer. Nodes
// 0..node_count-1 form groups of `copies` neighbours, the remainder joins the last group, and within a group each
// node's copies go to its successors, cyclically. Takes O(copies). Needs node < node_count and copies >= 1.
std::vector<std::uint32_t> group_holders(std::uint32_t node, std::uint32_t node_count, std::uint32_t copies);

}  // namespace ckpt::placement
