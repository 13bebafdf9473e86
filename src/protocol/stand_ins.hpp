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

// Returns the stand-ins from now on. A stand-in stays while it is present and needed. Every other lost member gets a
// free standby node, if there is one. A node of the same failure domain comes first: so what placement/ kept apart
// stays apart. An absent stand-in stays on record if no node is free to replace it. It may hold the last copies, and a
// restore waits only for nodes on record. A stand-in that came back with another memory is dropped. `lost`: the seats
// on lost nodes. `here`: the nodes that stand in already, or could.
std::vector<StandIn> choose_stand_ins(const std::vector<StandIn>& before, const std::vector<Seat>& lost,
                                      const std::vector<Standby>& here);

// Puts them into the places of what they stand in for. Who captures stays as it was.
void stand_in(Places& places, const std::vector<StandIn>& stand_ins);

}  // namespace ckpt::protocol
