// Which nodes keep parity for one another. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/domains.hpp"

namespace ckpt::placement {

struct ParityGroups {
  std::vector<std::vector<std::uint32_t>> groups;  // every node in one; members in the order of their positions
  std::uint32_t unseparated = 0;                   // groups of which a domain has more than one member
};

// As few groups as hold at most `members_max` nodes each, and as equal as can be; fewer and larger ones where some
// would be left too small to lose `rows` members. Members of a group lie as far from each other as possible:
// neighbours, who tend to share a rack, a switch, and a copy of each other's shards, are of different groups. `domains`
// may be null.
ParityGroups parity_groups(std::uint32_t nodes, std::uint32_t members_max, std::uint32_t rows, const Domains* domains);

}  // namespace ckpt::placement
