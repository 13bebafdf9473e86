// Divides nodes into parity groups. Here a member is a node of a parity group. The members of a group store parity for
// each other. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/domains.hpp"

namespace ckpt::placement {

struct ParityGroups {
  std::vector<std::vector<std::uint32_t>> groups;  // groups[g][m]: the node that is member m of group g
  std::uint32_t unseparated = 0;                   // how many groups have several members in one failure domain
};

// Puts each node into one group. Returns as few groups as possible with at most `members_max` nodes each. Their sizes
// differ by at most one. A group that shall survive the loss of `rows` members needs more than `rows` members. If
// groups of at most `members_max` nodes would be too small for that, the function makes fewer and larger groups. Nodes
// with neighbouring numbers go to different groups, because they often share a rack and have copies of each other's
// shards. `domains` may be null. It is used only during the call.
ParityGroups parity_groups(std::uint32_t nodes, std::uint32_t members_max, std::uint32_t rows, const Domains* domains);

}  // namespace ckpt::placement
