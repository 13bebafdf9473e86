#include "core/leader/rank_assignments.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "core/hash.hpp"

namespace ckpt::core {

namespace {

std::uint64_t hash_of(std::uint64_t hash, const RankAssignment& assignment) {
  for (const std::uint64_t number :
       {std::uint64_t{assignment.rank}, std::uint64_t{assignment.node}, assignment.arena_id,
        std::uint64_t{assignment.restored_parts}, std::uint64_t{assignment.wants_gpu_replication}}) {
    hash = core::hash_of(hash, number);
  }
  for (const std::string* text : {&assignment.domain, &assignment.main_shard, &assignment.private_shard}) {
    hash = core::hash_of(core::hash_of(hash, text->size()), *text);
  }
  for (const Cut& taken : assignment.takes)
    hash = core::hash_of(core::hash_of(core::hash_of(hash, taken.of), taken.shard.size()), taken.shard);
  return hash;
}

}  // namespace

AssignmentsName name_of(std::uint64_t incarnation, const std::vector<RankAssignment>& assignments) {
  std::uint64_t digest = core::hash_of(hash_begin, incarnation);
  for (const RankAssignment& assignment : assignments) digest = hash_of(digest, assignment);
  return {incarnation, static_cast<std::uint32_t>(assignments.size()), digest};
}

bool is_named(const AssignmentsName& name, const std::vector<RankAssignment>& assignments) {
  for (std::size_t i = 0; i < assignments.size(); ++i) {
    if (assignments[i].rank != i) return false;
  }
  return name_of(name.incarnation, assignments) == name;
}

const Cut* find_cut(const std::vector<Cut>& cuts, const std::string& main_shard) {
  const auto found = std::lower_bound(cuts.begin(), cuts.end(), main_shard,
                                      [](const Cut& cut, const std::string& shard) { return cut.shard < shard; });
  return found != cuts.end() && found->shard == main_shard ? &*found : nullptr;
}

AssignmentTable::AssignmentTable(std::uint64_t incarnation, std::vector<RankAssignment> assignments)
    : name_(name_of(incarnation, assignments)), assignments_(std::move(assignments)), arenas_(assignments_.size()) {
  std::map<std::string_view, std::uint32_t> cut;
  for (const RankAssignment& assignment : assignments_) {
    if (arenas_.emplace(assignment.node, assignment.arena_id).second)
      members_.push_back({assignment.node, assignment.arena_id});
    if (assignment.restored_parts > 1) cut[assignment.main_shard] = assignment.restored_parts;
  }
  for (const auto& [shard, parts] : cut) cuts_.push_back({std::string(shard), parts});
}

bool AssignmentTable::is_member(NodeId node, std::uint64_t arena_id) const {
  const auto found = arenas_.find(node);
  return found != arenas_.end() && found->second == arena_id;
}

}  // namespace ckpt::core
