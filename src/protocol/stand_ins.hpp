// Standby nodes in the places of members that are lost: which one goes where, and what that changes. Pure.
//
// The life stays as it is: nobody captures for a lost member, so nothing new is committed before the job starts again.
// But what is committed gets its copies back at once, and the next life may find a dead node's pieces where its ranks
// come back.
#pragma once

#include <string>
#include <vector>

#include "protocol/arrangement.hpp"

namespace ckpt::protocol {

struct Standby {
  Member node;
  std::string domain;
};

// The stand-ins from now on: of those there were, the ones that are still there and still needed; and for every other
// lost member a free standby node, as long as there is one: of the same failure domain rather than of another, so that
// what placement/ kept apart stays apart. A stand-in that is absent stays on record where nobody is free to replace it:
// it may hold the last copies, and a restore waits only for who is on record. One that is here with another memory
// goes. `lost` are the seats on lost nodes, `here` the nodes that could stand in, or do already.
std::vector<StandIn> choose_stand_ins(const std::vector<StandIn>& before, const std::vector<Seat>& lost,
                                      const std::vector<Standby>& here);

// Puts them into the places of what they stand in for. Who captures stays as it was.
void stand_in(Places& places, const std::vector<StandIn>& stand_ins);

}  // namespace ckpt::protocol
