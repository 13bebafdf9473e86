// Who runs where in an incarnation. A job may have more ranks than one record of the store has room for: rank
// assignments have records of their own, and the incarnation's record names them. That name follows from what they say,
// so whoever reads them knows whether they are the ones that were meant, and nobody ever writes others under it. Pure.
#pragma once

#include <unordered_map>
#include <vector>

#include "protocol/messages.hpp"

namespace ckpt::protocol {

class AssignmentTable {
 public:
  AssignmentTable() = default;  // of no incarnation
  // `assignments` by rank, without gaps.
  AssignmentTable(std::uint64_t incarnation, std::vector<RankAssignment> assignments);

  const AssignmentsName& name() const { return name_; }
  const std::vector<RankAssignment>& assignments() const { return assignments_; }
  const std::vector<Member>& members() const { return members_; }  // nodes, in the order of their lowest ranks
  const std::vector<Cut>& cuts() const { return cuts_; }           // of the restored checkpoint, by shard

  // With this arena.
  bool is_member(NodeId node, std::uint64_t arena_id) const;

 private:
  AssignmentsName name_;
  std::vector<RankAssignment> assignments_;
  std::vector<Member> members_;
  std::vector<Cut> cuts_;
  std::unordered_map<NodeId, std::uint64_t> arenas_;  // of the members
};

AssignmentsName name_of(std::uint64_t incarnation, const std::vector<RankAssignment>& assignments);

// How the checkpoint has a main shard; null where it is not cut. `cuts` by shard.
const Cut* find_cut(const std::vector<Cut>& cuts, const std::string& main_shard);

// What was read under that name is what was written under it.
bool is_named(const AssignmentsName& name, const std::vector<RankAssignment>& assignments);

}  // namespace ckpt::protocol
