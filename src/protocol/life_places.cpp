#include "protocol/life_places.hpp"

#include <algorithm>
#include <utility>

#include "protocol/lists.hpp"
#include "protocol/path_groups.hpp"
#include "protocol/stand_ins.hpp"

namespace ckpt::protocol {

namespace {

std::unordered_map<NodeId, LifePlaces::Tasks> by_node(const Places& places) {
  std::unordered_map<NodeId, LifePlaces::Tasks> of_node(places.size());
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

LifePlaces::LifePlaces(const LifeRecord& life, const Seating& seating) : began_from_(life.decision.version) {
  Arrangement arrangement = arrange(seating.seats(), life.strategy, life.protection);
  shares_.insert(arrangement.shares.begin(), arrangement.shares.end());
  paths_ = path_groups(seating.seats(), arrangement, life.protection);
  notice_ = arrangement.notice;
  if (auto otherwise = places_with(seating.cuts(), seating.seats(), arrangement))
    restored_ = Layout{std::move(*otherwise), {}, {}};
  own_.arranged = std::move(arrangement.places);
  own_.stand_in({});
  if (restored_) restored_->stand_in({});
}

void LifePlaces::stand_in(const std::vector<StandIn>& stand_ins) {
  if (stand_ins == stand_ins_) return;
  stand_ins_ = stand_ins;
  own_.stand_in(stand_ins);
  if (restored_) restored_->stand_in(stand_ins);
}

const Share* LifePlaces::share_of(Rank rank) const {
  const auto found = shares_.find(rank);
  return found == shares_.end() ? nullptr : &found->second;
}

const PathGroup* LifePlaces::path_of(Rank rank) const {
  const auto found = paths_.find(rank);
  return found == paths_.end() ? nullptr : &found->second;
}

const LifePlaces::Tasks& LifePlaces::Layout::tasks_of(NodeId node) const {
  static const Tasks none;
  const auto found = tasks.find(node);
  return found == tasks.end() ? none : found->second;
}

void LifePlaces::Layout::stand_in(const std::vector<StandIn>& stand_ins) {
  stood_in.reset();
  if (!stand_ins.empty()) {
    stood_in = arranged;
    protocol::stand_in(*stood_in, stand_ins);
  }
  tasks = by_node(now());
}

}  // namespace ckpt::protocol
