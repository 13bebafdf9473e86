// Which node stands at which position of a pattern, so that positions that hold the same part are in different failure
// domains. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/domains.hpp"
#include "placement/pattern.hpp"

namespace ckpt::placement {

// order[position] = node. Without domains a node stands at the position of its number. With them, holders of one part
// share no domain while that is possible; where a domain is too large for that, its nodes are spread as evenly as can
// be, and smaller domains within it are still kept apart (but for `cover`, where such a domain may find its only room
// in the overlapping sets and be left unseparated). Nodes that hold the same shard stay in their cell: sharded patterns
// only choose who is whose neighbour. O(N log N).
std::vector<std::uint32_t> arrange(const Pattern& pattern, const Domains& domains);

// Two nodes that hold copies of one part and are in one domain, the innermost such.
struct Unseparated {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t domain = 0;
  bool operator==(const Unseparated&) const = default;
};
// All such pairs once each, a < b, in order. O(N copies).
std::vector<Unseparated> unseparated(const Pattern& pattern, const std::vector<std::uint32_t>& order,
                                     const Domains& domains);

}  // namespace ckpt::placement
