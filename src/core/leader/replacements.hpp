// Chooses which standby node replaces which lost member, and puts the replacements into the placement. Pure functions.
//
// The replacement gets the pieces that the lost member held, so committed checkpoints soon have all their copies again.
// The lost member's ranks may later start on the replacement. Then their pieces are there already. The incarnation
// stays the same: nobody captures for the lost member, so no new checkpoint is committed before the job restarts.
#pragma once

#include <string>
#include <vector>

#include "core/job_placement.hpp"

namespace ckpt::core {

struct StandbyNode {
  Member node;
  std::string domain;
};

// Returns the replacements from now on:
// - Earlier replacements stay while they are present and needed. One that came back with another arena is dropped.
// - Every other lost member gets a free standby node while there is one, preferably of the same failure domain, so that
//   copies stay apart as placement/ chose.
// - An absent replacement stays if no free standby node can take its place. It may hold the last copies, and a restore
//   waits only for nodes that the incarnation's record names.
// `lost`: the rank assignments on lost nodes. `here`: the nodes that can be replacements, or are already.
std::vector<Replacement> choose_replacements(const std::vector<Replacement>& before,
                                             const std::vector<RankAssignment>& lost,
                                             const std::vector<StandbyNode>& here);

// Puts the replacements into the places of the lost members. The capturers stay as they were.
void put_in_replacements(Places& places, const std::vector<Replacement>& replacements);

}  // namespace ckpt::core
