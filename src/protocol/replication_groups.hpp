// Whose pieces go from GPU to GPU (docs/gpu.md): who sends to whom in one incarnation, as it follows from its rank
// assignments. A group is made of the ranks that have the same place on their nodes, the n-th one each, on the nodes
// that hold each other's copies. So there is one only where the pieces of all its ranks are held by exactly its nodes,
// where copies are all that is kept, and where nobody shares what it captures. Everywhere else pieces go from host to
// host. Pure.
#pragma once

#include <map>
#include <vector>

#include "protocol/job_placement.hpp"
#include "protocol/messages.hpp"

namespace ckpt::protocol {

// Of each rank that asks for it: its group, or why it has none. All members of a group find the same.
std::map<Rank, ReplicationGroup> replication_groups(const std::vector<RankAssignment>& assignments,
                                                    const JobPlacement& placement_of_job,
                                                    const placement::Protection& protection);

}  // namespace ckpt::protocol
