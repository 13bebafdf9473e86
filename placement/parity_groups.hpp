// Divides nodes into parity groups, whose members store parity for each other. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/domains.hpp"

namespace ckpt::placement {

struct ParityGroups {
  std::vector<std::vector<std::uint32_t>> groups;  // each node is in one; members in the order of their positions
  std::uint32_t unseparated = 0;                   // groups with several members in one domain
};

// Returns as few groups as possible with at most `members_max` nodes each, about equal in size. If some groups would be
// too small to lose `rows` members, there are fewer and larger groups instead. Neighbours often share a rack, a switch,
// and copies of each other's shards, so they go to different groups. `domains` may be null.
ParityGroups parity_groups(std::uint32_t nodes, std::uint32_t members_max, std::uint32_t rows, const Domains* domains);

}  // namespace ckpt::placement
