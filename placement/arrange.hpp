// Decides which node takes which position of a placement's pattern (pattern.hpp). Nodes that hold copies of the same
// part should be in different failure domains. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/domains.hpp"
#include "placement/pattern.hpp"

namespace ckpt::placement {

// Returns the order of the nodes: order[position] is the number of a node. If `domains` has no domain, node n gets
// position n. Otherwise nodes that hold the same part share no domain, where that is possible. If a domain is too large
// for that, its nodes are spread as evenly as possible, and the smaller domains within it are still kept apart. One
// exception: with the strategy `cover`, two sets of holders overlap. arrange() does not try every choice of the nodes
// in these two sets, so two nodes of a domain may stay in one of them. In sharded patterns, nodes with the same shard
// stay in one cell (pattern.hpp), and only their order changes. O(N log N) for N nodes.
std::vector<std::uint32_t> arrange(const Pattern& pattern, const Domains& domains);

// Two nodes that have copies of one part and share a failure domain. `domain` is the innermost domain that they share.
struct Unseparated {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t domain = 0;
  bool operator==(const Unseparated&) const = default;
};
// All pairs of nodes that hold copies of one part and share a domain. Each pair is listed once, with a < b. The list is
// sorted. O(nodes * copies).
std::vector<Unseparated> unseparated(const Pattern& pattern, const std::vector<std::uint32_t>& order,
                                     const Domains& domains);

}  // namespace ckpt::placement
