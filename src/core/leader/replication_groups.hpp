// Finds the replication groups of an incarnation: the ranks that copy their pieces from GPU to GPU to each other, or
// make parity of them. The n-th ranks of the nodes that hold each other's copies form a group. If parity is the only
// protection, ranks whose main shards are encoded together form a group. There is no group if other nodes hold pieces
// of its ranks, if there are both copies and parity, or if ranks share what they capture. Then the pieces go from host
// to host. Pure functions.
#pragma once

#include <map>
#include <vector>

#include "core/job_placement.hpp"
#include "core/messages.hpp"

namespace ckpt::core {

// For each rank that asks for GPU replication: its group, or why it has none. All members of a group get the same
// group.
std::map<Rank, ReplicationGroup> replication_groups(const std::vector<RankAssignment>& assignments,
                                                    const JobPlacement& placement_of_job,
                                                    const placement::Protection& protection);

}  // namespace ckpt::core
