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

// Returns the replacements from now on. A replacement stays while it is present and needed. Every other lost member
// gets a free standby node, if there is one. A node of the same failure domain comes first: so what placement/ kept
// apart stays apart. An absent replacement stays on record if no node is free to replace it. It may hold the last
// copies, and a restore waits only for nodes on record. A replacement that came back with another memory is dropped.
// `lost`: the rank assignments on lost nodes. `here`: the nodes that be replacements already, or could.
std::vector<Replacement> choose_replacements(const std::vector<Replacement>& before,
                                             const std::vector<RankAssignment>& lost,
                                             const std::vector<StandbyNode>& here);

// Puts them into the places of what they replace. Who captures stays as it was.
void put_in_replacements(Places& places, const std::vector<Replacement>& replacements);

}  // namespace ckpt::protocol
