#include "protocol/path_groups.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "protocol/lists.hpp"

namespace ckpt::protocol {

namespace {

class Grouping {
 public:
  Grouping(const std::vector<Seat>& seats, const Arrangement& arrangement) : arrangement_(arrangement) {
    for (const Seat& seat : seats) {
      auto& here = by_node_[seat.node];
      nth_[seat.rank] = here.size();
      here.push_back(&seat);
      ++naming_[seat.main_shard];
    }
  }

  PathGroup group_of(const Seat& seat) const {
    PathGroup group;
    if (is_shared(seat)) return refused("ranks share its main shard, and each of them captures it");
    const std::vector<NodeId> nodes = holders_of(seat);
    if (nodes.size() < 2) return refused("no other node holds a copy of its shard");
    if (nodes.size() > path_members_max)
      return refused("more than " + std::to_string(path_members_max) + " nodes hold each other's copies");
    for (const NodeId node : nodes) {
      const auto here = by_node_.find(node);
      if (here == by_node_.end() || here->second.size() != by_node_.at(seat.node).size())
        return refused("node " + std::to_string(node) + ", which holds its copy, has another number of ranks");
      const Seat& peer = *here->second[nth_.at(seat.rank)];
      const std::string rank = "rank " + std::to_string(peer.rank);
      if (!peer.wants_path) return refused(rank + ", which belongs to its group, does not take part");
      if (is_shared(peer)) return refused(rank + ", which belongs to its group, shares its main shard");
      if (holders_of(peer) != nodes)
        return refused("copies of " + rank +
                       " lie on other nodes than its own; groups are complete where the option copies divides the "
                       "number of nodes, with the placements group and auto");
      group.members.push_back({peer.node, peer.rank, peer.main_shard});
    }
    const auto by_rank = [](const PathMember& a, const PathMember& b) { return a.rank < b.rank; };
    std::sort(group.members.begin(), group.members.end(), by_rank);
    group.member = static_cast<std::uint32_t>(
        std::find_if(group.members.begin(), group.members.end(), [&](const auto& m) { return m.rank == seat.rank; }) -
        group.members.begin());
    return group;
  }

 private:
  static PathGroup refused(std::string why) { return {{}, 0, std::move(why)}; }
  bool is_shared(const Seat& seat) const { return naming_.at(seat.main_shard) > 1; }

  std::vector<NodeId> holders_of(const Seat& seat) const {
    std::vector<NodeId> nodes = arrangement_.places.at(seat.main_shard).holders;
    std::sort(nodes.begin(), nodes.end());
    return nodes;
  }

  const Arrangement& arrangement_;
  std::unordered_map<NodeId, std::vector<const Seat*>> by_node_;  // in the order of their ranks
  std::unordered_map<Rank, std::size_t> nth_;                     // of its node
  std::unordered_map<std::string_view, std::size_t> naming_;      // ranks, by main shard
};

}  // namespace

std::map<Rank, PathGroup> path_groups(const std::vector<Seat>& seats, const Arrangement& arrangement,
                                      const placement::Protection& protection) {
  std::map<Rank, PathGroup> groups;
  const auto asks = [](const Seat& seat) { return seat.wants_path; };
  if (std::none_of(seats.begin(), seats.end(), asks)) return groups;
  const Grouping grouping(seats, arrangement);
  for (const Seat& seat : seats) {
    if (!asks(seat)) continue;
    groups[seat.rank] =
        protection.has_parity() ? PathGroup{{}, 0, "parity is kept, which is made on hosts"} : grouping.group_of(seat);
  }
  return groups;
}

}  // namespace ckpt::protocol
