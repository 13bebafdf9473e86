// Decides which node takes which position of a placement's pattern, so that nodes with copies of one part are in
// different failure domains. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/domains.hpp"
#include "placement/pattern.hpp"

namespace ckpt::placement {

// Returns order[position] = node. Without domains, each node has the position of its number. With domains, holders of
// one part share no domain while that is possible. If a domain is too large for that, its nodes are spread as evenly as
// possible, and smaller domains within it are still kept apart. The strategy `cover` is an exception: a domain that
// fits only into its overlapping sets stays unseparated. In sharded patterns, nodes that hold the same shard stay
// together, and only their order changes. O(N log N).
std::vector<std::uint32_t> arrange(const Pattern& pattern, const Domains& domains);

// Two nodes that have copies of one part and share a failure domain. `domain` is the innermost one that they share.
struct Unseparated {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t domain = 0;
  bool operator==(const Unseparated&) const = default;
};
// All pairs of nodes that hold copies of one part and share a domain: each once, a < b, in order. O(N copies).
std::vector<Unseparated> unseparated(const Pattern& pattern, const std::vector<std::uint32_t>& order,
                                     const Domains& domains);

}  // namespace ckpt::placement
