// Standby nodes in the places of members that are lost: which one goes where, and what that changes. Pure.
//
// The incarnation stays as it is: nobody captures for a lost member, so nothing new is committed before the job starts
// again. But what is committed gets its copies back at once, and the next incarnation may find a dead node's pieces
// where its ranks come back.
#pragma once

#include <string>
#include <vector>

#include "protocol/job_placement.hpp"

namespace ckpt::protocol {

struct StandbyNode {
  Member node;
  std::string domain;
};

// The replacements from now on: of those there were, the ones that are still there and still needed; and for every
// other lost member a free standby node, as long as there is one: of the same failure domain rather than of another, so
// that what placement/ kept apart stays apart. A replacement that is absent stays on record where nobody is free to
// replace it: it may hold the last copies, and a restore waits only for who is on record. One that is here with another
// memory goes. `lost` are the rank assignments on lost nodes, `here` the nodes that could be replacements, or do
// already.
std::vector<Replacement> choose_replacements(const std::vector<Replacement>& before,
                                             const std::vector<RankAssignment>& lost,
                                             const std::vector<StandbyNode>& here);

// Puts them into the places of what they replace. Who captures stays as it was.
void put_in_replacements(Places& places, const std::vector<Replacement>& replacements);

}  // namespace ckpt::protocol
