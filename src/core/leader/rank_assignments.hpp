// Packs the rank assignments of an incarnation into records of the coordination store, and verifies them when they are
// read. They may not fit into one record, so they have several of their own. The incarnation's record names them. The
// name contains a digest of their content, so nobody can store other assignments under it. Pure functions.
#pragma once

#include <unordered_map>
#include <vector>

#include "core/messages.hpp"

namespace ckpt::core {

class AssignmentTable {
 public:
  AssignmentTable() = default;  // of no incarnation
  // `assignments` in order of rank, without gaps.
  AssignmentTable(std::uint64_t incarnation, std::vector<RankAssignment> assignments);

  const AssignmentsName& name() const { return name_; }
  const std::vector<RankAssignment>& assignments() const { return assignments_; }
  const std::vector<Member>& members() const { return members_; }  // in the order of their lowest ranks
  const std::vector<Cut>& cuts() const { return cuts_; }           // of the restored checkpoint, in order of shards

  // True if this node is a member, with this arena.
  bool is_member(NodeId node, std::uint64_t arena_id) const;

 private:
  AssignmentsName name_;
  std::vector<RankAssignment> assignments_;
  std::vector<Member> members_;
  std::vector<Cut> cuts_;
  std::unordered_map<NodeId, std::uint64_t> arenas_;  // of the members
};

AssignmentsName name_of(std::uint64_t incarnation, const std::vector<RankAssignment>& assignments);

// How a checkpoint has cut the main shard; null if it is not cut. `cuts` are in order of shards.
const Cut* find_cut(const std::vector<Cut>& cuts, const std::string& main_shard);

// True if these are the rank assignments with that name: complete and unchanged.
bool is_named(const AssignmentsName& name, const std::vector<RankAssignment>& assignments);

}  // namespace ckpt::core
