// Replication groups: the ranks that copy their pieces from GPU to GPU to each other (docs/gpu.md). A group has the
// n-th ranks of the nodes that hold each other's copies. It exists only if exactly these nodes hold the pieces of all
// its ranks, there is no parity, and no rank shares what it captures. All other pieces go from host to host. The groups
// follow from the incarnation's rank assignments. Pure.
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
