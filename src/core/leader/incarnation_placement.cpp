#include "core/leader/incarnation_placement.hpp"

#include <algorithm>
#include <utility>

#include "core/leader/replacements.hpp"
#include "core/leader/replication_groups.hpp"
#include "core/lists.hpp"

namespace ckpt::core {

namespace {

std::unordered_map<NodeId, IncarnationPlacement::Tasks> by_node(const Places& places) {
  std::unordered_map<NodeId, IncarnationPlacement::Tasks> of_node(places.size());
  for (const auto& entry : places) {
    const auto note = [&](const std::vector<NodeId>& nodes, bool Role::*does) {
      for (const NodeId node : nodes) {
        auto& tasks = of_node[node];
        if (tasks.empty() || tasks.back().place != &entry) tasks.push_back({&entry, {}});
        tasks.back().role.*does = true;
      }
    };
    note(entry.second.owners, &Role::owns);
    note(entry.second.capturers, &Role::captures);
    note(entry.second.holders, &Role::holds);
  }
  for (auto& [node, tasks] : of_node) {
    std::sort(tasks.begin(), tasks.end(), [](const auto& a, const auto& b) { return a.place->first < b.place->first; });
  }
  return of_node;
}

}  // namespace

Role role_of(NodeId node, const Place& place) {
  return {contains(place.owners, node), contains(place.capturers, node), contains(place.holders, node)};
}

IncarnationPlacement::IncarnationPlacement(const IncarnationRecord& record, const AssignmentTable& assignment_table)
    : began_from_(record.decision.checkpoint),
      own_ranks_(began_from_ && record.restored_ranks != 0 ? record.restored_ranks : record.assignments.count) {
  for (const RankAssignment& assignment : assignment_table.assignments())
    if (!assignment.takes.empty()) takes_.emplace(assignment.rank, assignment.takes);
  if (!takes_.empty()) own_ranks_ = record.assignments.count;
  JobPlacement placement_of_job = arrange(assignment_table.assignments(), record.strategy, record.protection);
  shares_.insert(placement_of_job.shares.begin(), placement_of_job.shares.end());
  replications_ = replication_groups(assignment_table.assignments(), placement_of_job, record.protection);
  notice_ = placement_of_job.notice;
  lone_shard_ = placement_of_job.lone_shard;
  lone_node_ = placement_of_job.lone_node;
  if (!assignment_table.assignments().empty()) adopted_ = assignment_table.assignments().front().private_shard;
  if (auto otherwise =
          places_with(assignment_table.cuts(), own_ranks_, assignment_table.assignments(), placement_of_job))
    restored_ = Layout{std::move(*otherwise), {}, {}};
  own_.arranged = std::move(placement_of_job.places);
  own_.put_in_replacements({});
  if (restored_) restored_->put_in_replacements({});
}

void IncarnationPlacement::put_in_replacements(const std::vector<Replacement>& replacements) {
  if (replacements == replacements_) return;
  replacements_ = replacements;
  own_.put_in_replacements(replacements);
  if (restored_) restored_->put_in_replacements(replacements);
}

const Share* IncarnationPlacement::share_of(Rank rank) const {
  const auto found = shares_.find(rank);
  return found == shares_.end() ? nullptr : &found->second;
}

const std::vector<Cut>& IncarnationPlacement::taken_by(Rank rank) const {
  static const std::vector<Cut> none;
  const auto found = takes_.find(rank);
  return found == takes_.end() ? none : found->second;
}

const ReplicationGroup* IncarnationPlacement::replication_of(Rank rank) const {
  const auto found = replications_.find(rank);
  return found == replications_.end() ? nullptr : &found->second;
}

const IncarnationPlacement::Tasks& IncarnationPlacement::Layout::tasks_of(NodeId node) const {
  static const Tasks none;
  const auto found = tasks.find(node);
  return found == tasks.end() ? none : found->second;
}

void IncarnationPlacement::Layout::put_in_replacements(const std::vector<Replacement>& replacements) {
  with_replacements.reset();
  if (!replacements.empty()) {
    with_replacements = arranged;
    core::put_in_replacements(*with_replacements, replacements);
  }
  tasks = by_node(now());
}

}  // namespace ckpt::core
