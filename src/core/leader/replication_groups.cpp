#include "core/leader/replication_groups.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "core/lists.hpp"

namespace ckpt::core {

namespace {

class Grouping {
 public:
  Grouping(const std::vector<RankAssignment>& assignments, const JobPlacement& placement_of_job)
      : arrangement_(placement_of_job) {
    for (const RankAssignment& assignment : assignments) {
      auto& here = by_node_[assignment.node];
      nth_[assignment.rank] = here.size();
      here.push_back(&assignment);
      ++naming_[assignment.main_shard];
      by_shard_[assignment.main_shard] = &assignment;
    }
    for (const auto& [name, place] : placement_of_job.places) {
      if (!place.parity || place.parity->member != 0) continue;
      for (const std::string& shard : place.parity->shards) parity_[shard] = &*place.parity;
    }
  }

  // The ranks that hold each other's copies.
  ReplicationGroup copies_of(const RankAssignment& assignment) const {
    ReplicationGroup group;
    if (is_shared(assignment)) return refused(shared);
    const std::vector<NodeId> nodes = holders_of(assignment);
    if (nodes.size() < 2) return refused("no other node holds a copy of its shard");
    if (nodes.size() > replication_members_max)
      return refused("more than " + std::to_string(replication_members_max) + " nodes hold each other's copies");
    for (const NodeId node : nodes) {
      const auto here = by_node_.find(node);
      if (here == by_node_.end() || here->second.size() != by_node_.at(assignment.node).size())
        return refused("node " + std::to_string(node) +
                       ", which holds its copy, has another number of ranks than its own node");
      const RankAssignment& peer = *here->second[nth_.at(assignment.rank)];
      if (const std::string why = refusal_of(peer); !why.empty()) return refused(why);
      if (holders_of(peer) != nodes)
        return refused("copies of rank " + std::to_string(peer.rank) +
                       " are on nodes outside its group; groups are complete if the option copies divides the number "
                       "of nodes and the "
                       "placement is group or auto");
      group.members.push_back({peer.node, peer.rank, peer.main_shard});
    }
    const auto by_rank = [](const ReplicationMember& a, const ReplicationMember& b) { return a.rank < b.rank; };
    std::sort(group.members.begin(), group.members.end(), by_rank);
    group.member = static_cast<std::uint32_t>(std::find_if(group.members.begin(), group.members.end(),
                                                           [&](const auto& m) { return m.rank == assignment.rank; }) -
                                              group.members.begin());
    return group;
  }

  // The ranks whose main shards are encoded together.
  ReplicationGroup encoded_with(const RankAssignment& assignment) const {
    if (is_shared(assignment)) return refused(shared);
    const auto found = parity_.find(assignment.main_shard);
    if (found == parity_.end()) return refused("no other node is in the parity group of its node");
    const ParityOf& parity = *found->second;
    if (parity.shards.size() > replication_members_max)
      return refused("its parity group has more than " + std::to_string(replication_members_max) + " nodes");
    ReplicationGroup group;
    group.rows = parity.rows;
    for (const std::string& shard : parity.shards) {
      const auto peer = by_shard_.find(shard);
      if (peer == by_shard_.end())
        return refused("not all nodes of its parity group have the same number of ranks with main shards of their own");
      if (const std::string why = refusal_of(*peer->second); !why.empty()) return refused(why);
      if (peer->second->rank == assignment.rank) group.member = static_cast<std::uint32_t>(group.members.size());
      group.members.push_back({peer->second->node, peer->second->rank, shard});
    }
    return group;
  }

  static ReplicationGroup refused(std::string why) { return {{}, 0, std::move(why)}; }

 private:
  static constexpr const char* shared =
      "several ranks have its main shard, and only main shards of a single rank go from GPU to GPU";

  bool is_shared(const RankAssignment& assignment) const { return naming_.at(assignment.main_shard) > 1; }

  // Why the rank cannot be in a group; "" if it can.
  std::string refusal_of(const RankAssignment& peer) const {
    const std::string rank = "rank " + std::to_string(peer.rank);
    if (!peer.wants_gpu_replication)
      return rank + ", which belongs to its group, does not take part in GPU replication";
    if (is_shared(peer)) return rank + ", which belongs to its group, shares its main shard";
    return {};
  }

  std::vector<NodeId> holders_of(const RankAssignment& assignment) const {
    std::vector<NodeId> nodes = arrangement_.places.at(assignment.main_shard).holders;
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }

  const JobPlacement& arrangement_;
  std::unordered_map<NodeId, std::vector<const RankAssignment*>> by_node_;  // in the order of their ranks
  std::unordered_map<Rank, std::size_t> nth_;                               // the rank's position on its node
  std::unordered_map<std::string_view, std::size_t> naming_;                // number of ranks, by main shard
  std::unordered_map<std::string_view, const RankAssignment*> by_shard_;    // by main shard
  std::unordered_map<std::string_view, const ParityOf*> parity_;            // by shard: with what it is encoded
};

}  // namespace

std::map<Rank, ReplicationGroup> replication_groups(const std::vector<RankAssignment>& assignments,
                                                    const JobPlacement& placement_of_job,
                                                    const placement::Protection& protection) {
  std::map<Rank, ReplicationGroup> groups;
  const auto asks = [](const RankAssignment& assignment) { return assignment.wants_gpu_replication; };
  if (std::none_of(assignments.begin(), assignments.end(), asks)) return groups;
  const Grouping grouping(assignments, placement_of_job);
  for (const RankAssignment& assignment : assignments) {
    if (!asks(assignment)) continue;
    groups[assignment.rank] = !protection.has_parity() ? grouping.copies_of(assignment)
                              : protection.copies == 1 ? grouping.encoded_with(assignment)
                                                       : Grouping::refused("the job keeps copies besides parity");
  }
  return groups;
}

}  // namespace ckpt::core
