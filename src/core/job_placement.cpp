#include "core/job_placement.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "core/lists.hpp"
#include "placement/parity_groups.hpp"
#include "placement/placement.hpp"

namespace ckpt::core {

namespace {

using placement::Domains;
using placement::Strategy;

struct Nodes {
  std::vector<NodeId> ids;  // in the order of their lowest rank: replacing one moves no other
  std::unordered_map<NodeId, std::string> domains;
};

Nodes nodes_of(const std::vector<RankAssignment>& assignments) {
  Nodes nodes;
  for (const RankAssignment& assignment : assignments) {
    if (nodes.domains.emplace(assignment.node, assignment.domain).second) nodes.ids.push_back(assignment.node);
  }
  return nodes;
}

// The tree of these nodes' domains, for placement/. None if no node names a domain.
std::optional<Domains> domains_of(const std::vector<NodeId>& ids,
                                  const std::unordered_map<NodeId, std::string>& named) {
  if (std::all_of(ids.begin(), ids.end(), [&](NodeId id) { return named.at(id).empty(); })) return std::nullopt;
  std::map<std::string, std::string> parents;
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::string& path = named.at(ids[i]);
    if (path.empty()) {
      text += std::to_string(i) + " alone:" + std::to_string(i) + "\n";
      continue;
    }
    text += std::to_string(i) + " in:" + path + "\n";
    for (std::size_t slash = path.rfind('/'); slash != std::string::npos && slash != 0;
         slash = path.rfind('/', slash - 1)) {
      const std::size_t next = path.find('/', slash + 1);
      parents["in:" + path.substr(0, next)] = "in:" + path.substr(0, slash);
    }
  }
  for (const auto& [child, parent] : parents) text += child + " " + parent + "\n";
  return Domains::parse(text, static_cast<std::uint32_t>(ids.size()));
}

placement::Placement place(Strategy strategy, const std::vector<NodeId>& ids, std::uint32_t copies,
                           const std::unordered_map<NodeId, std::string>& named) {
  const auto domains = domains_of(ids, named);
  return placement::place({.strategy = strategy,
                           .nodes = static_cast<std::uint32_t>(ids.size()),
                           .copies = std::min(copies, static_cast<std::uint32_t>(ids.size())),
                           .domains = domains ? &*domains : nullptr});
}

// For every node: the nodes that hold what it captures, itself first.
std::unordered_map<NodeId, std::vector<NodeId>> partners_of(const Nodes& nodes, Strategy strategy, std::uint32_t copies,
                                                            std::string& notice) {
  const auto placed = place(strategy, nodes.ids, copies, nodes.domains);
  std::unordered_map<NodeId, std::vector<NodeId>> partners(nodes.ids.size());
  for (std::uint32_t i = 0; i < nodes.ids.size(); ++i) {
    for (const std::uint32_t holder : placed.holders(i)) partners[nodes.ids[i]].push_back(nodes.ids[holder]);
  }
  if (!placed.unseparated().empty()) {
    notice = "copies of " + std::to_string(placed.unseparated().size()) +
             " shards could not be kept in different failure domains; name more domains, or ask for fewer copies";
  }
  return partners;
}

// Orders ranks that share a shard, so that neighbours run on different nodes and, if possible, in different domains.
std::vector<const RankAssignment*> ring_of(const std::vector<const RankAssignment*>& sharers, std::uint32_t copies) {
  std::vector<RankAssignment> assignments;
  for (const RankAssignment* assignment : sharers) assignments.push_back(*assignment);
  const Nodes nodes = nodes_of(assignments);
  const auto placed = place(Strategy::ring, nodes.ids, copies, nodes.domains);
  std::map<NodeId, std::vector<const RankAssignment*>> left;
  for (const RankAssignment* assignment : sharers) left[assignment->node].push_back(assignment);
  std::vector<const RankAssignment*> ring;
  for (std::size_t round = 0; ring.size() < sharers.size(); ++round) {
    for (const std::uint32_t index : placed.order()) {
      const auto& here = left.at(nodes.ids[index]);
      if (round < here.size()) ring.push_back(here[round]);
    }
  }
  return ring;
}

std::uint32_t parts_stored(std::optional<Strategy> strategy, std::uint32_t copies, std::size_t sharers) {
  if (strategy == Strategy::sharded) return 1;
  return static_cast<std::uint32_t>(std::min<std::size_t>({copies, sharers, parts_stored_max}));
}

// The nodes of these ranks, each once, in the order of the ranks.
std::vector<NodeId> nodes_under(const std::vector<const RankAssignment*>& assignments) {
  std::vector<NodeId> nodes;
  std::unordered_set<NodeId> seen;
  for (const RankAssignment* assignment : assignments) {
    if (seen.insert(assignment->node).second) nodes.push_back(assignment->node);
  }
  return nodes;
}

std::unordered_map<std::string, std::vector<const RankAssignment*>> sharers_in(
    const std::vector<RankAssignment>& assignments) {
  std::unordered_map<std::string, std::vector<const RankAssignment*>> sharers;
  sharers.reserve(assignments.size());
  for (const RankAssignment& assignment : assignments) sharers[assignment.main_shard].push_back(&assignment);
  return sharers;
}

// The shards of its rank that a node keeps first: the part that it captures first, unless an earlier rank names the
// same undivided shard; and its private shard.
struct Homes {
  std::map<NodeId, std::vector<std::string>> main;
  std::map<NodeId, std::vector<std::string>> private_;
};

Homes homes_of(const std::vector<RankAssignment>& assignments, const std::map<Rank, Share>& shares) {
  Homes homes;
  std::set<std::string> taken;
  for (const RankAssignment& assignment : assignments) {
    const Share& share = shares.at(assignment.rank);
    const std::string part = part_name(assignment.main_shard, share.first, share.of);
    if (taken.insert(part).second) homes.main[assignment.node].push_back(part);
    homes.private_[assignment.node].push_back(assignment.private_shard);
  }
  return homes;
}

// For every n, the members' n-th shards form one group of shards.
void add_parity(const std::vector<NodeId>& members, std::uint32_t rows,
                std::map<NodeId, std::vector<std::string>>& homes, Places& places) {
  std::size_t most = 0;
  for (const NodeId node : members) most = std::max(most, homes[node].size());
  for (std::size_t nth = 0; nth < most; ++nth) {
    std::vector<std::string> shards;
    for (const NodeId node : members) shards.push_back(nth < homes[node].size() ? homes[node][nth] : "");
    for (std::uint32_t member = 0; member < members.size(); ++member) {
      places[parity_name(rows, shards, member)] = {{}, {}, {members[member]}, ParityOf{rows, member, shards}};
    }
  }
}

void add_parity(const Nodes& nodes, const std::vector<RankAssignment>& assignments,
                const placement::Protection& protection, JobPlacement& placement_of_job) {
  const auto count = static_cast<std::uint32_t>(nodes.ids.size());
  const auto domains = domains_of(nodes.ids, nodes.domains);
  const auto grouped =
      placement::parity_groups(count, protection.members, protection.rows, domains ? &*domains : nullptr);
  Homes homes = homes_of(assignments, placement_of_job.shares);
  for (const auto& group : grouped.groups) {
    const auto rows = std::min(protection.rows, static_cast<std::uint32_t>(group.size()) - 1);
    if (rows == 0) continue;
    std::vector<NodeId> members;
    for (const std::uint32_t index : group) members.push_back(nodes.ids[index]);
    add_parity(members, rows, homes.main, placement_of_job.places);
    add_parity(members, rows, homes.private_, placement_of_job.places);
  }
  if (grouped.unseparated != 0) {
    placement_of_job.notice +=
        std::string(placement_of_job.notice.empty() ? "" : "; ") + std::to_string(grouped.unseparated) +
        " parity groups have several members in one failure domain; name more domains, or ask for "
        "smaller groups";
  }
}

// Members whose shard has no place have none in the group.
void add_parity_of_what_is_there(const Place& place, Places& places) {
  Place left = place;
  auto& shards = left.parity->shards;
  for (std::string& shard : shards) {
    if (!places.contains(shard)) shard.clear();
  }
  if (std::all_of(shards.begin(), shards.end(), [](const std::string& shard) { return shard.empty(); })) return;
  places.try_emplace(parity_name(left.parity->rows, shards, left.parity->member), std::move(left));
}

// Each shard goes to the ranks that take it over, and to the nodes that hold their own private shards.
Places places_of_taken(const std::vector<RankAssignment>& assignments, const JobPlacement& placement_of_job) {
  Places places;
  for (const RankAssignment& assignment : assignments) {
    for (const Cut& taken : assignment.takes) {
      for (const std::string& part : parts_of(taken.shard, taken.of)) {
        Place& place = places[part];
        add_once(place.owners, assignment.node);
        for (const NodeId node : placement_of_job.places.at(assignment.private_shard).holders)
          add_once(place.holders, node);
      }
    }
  }
  return places;
}

}  // namespace

JobPlacement arrange(const std::vector<RankAssignment>& assignments, std::optional<Strategy> strategy,
                     const placement::Protection& protection) {
  const std::uint32_t copies = protection.copies;
  JobPlacement placement_of_job;
  const Nodes nodes = nodes_of(assignments);
  const bool shards_are_cut = !strategy || placement::is_sharded(*strategy);
  const Strategy replicating = shards_are_cut ? Strategy::group : *strategy;
  const auto partners = partners_of(nodes, replicating, copies, placement_of_job.notice);
  const std::uint32_t wanted = std::min(copies, static_cast<std::uint32_t>(nodes.ids.size()));

  // The nodes that capture it hold it. If they are too few, the partners of the first one hold it, too.
  const auto complete = [&](Place& place, std::uint32_t holders) {
    place.holders = place.capturers;
    for (const NodeId partner : partners.at(place.capturers.front())) add_once(place.holders, partner);
    place.holders.resize(std::min<std::size_t>(holders, place.holders.size()));
  };

  placement_of_job.places.reserve(2 * assignments.size());
  for (const RankAssignment& assignment : assignments) {
    Place& own = placement_of_job.places[assignment.private_shard];
    own.owners = own.capturers = {assignment.node};
    complete(own, wanted);
  }
  for (const auto& [shard, naming] : sharers_in(assignments)) {
    const auto count = static_cast<std::uint32_t>(naming.size());
    const std::uint32_t stored = parts_stored(strategy, copies, count);
    const bool is_cut = shards_are_cut && stored < count && count <= parts_max;
    const auto ring = is_cut ? ring_of(naming, stored) : naming;
    for (std::uint32_t i = 0; i < count; ++i) {
      const Share share = is_cut ? Share{i, count, stored} : Share{};
      placement_of_job.shares[ring[i]->rank] = share;
      for (const std::string& part : parts_of(shard, share))
        add_once(placement_of_job.places[part].capturers, ring[i]->node);
    }
    const auto owners = nodes_under(naming);
    if (owners.size() == 1 && (placement_of_job.lone_shard.empty() || shard < placement_of_job.lone_shard)) {
      placement_of_job.lone_shard = shard;
      placement_of_job.lone_node = owners.front();
    }
    for (const std::string& part : parts_of(shard, is_cut ? count : 1)) {
      Place& place = placement_of_job.places[part];
      place.owners = owners;
      complete(place, is_cut && strategy == Strategy::sharded ? 1 : wanted);
    }
  }
  if (protection.has_parity()) add_parity(nodes, assignments, protection, placement_of_job);
  return placement_of_job;
}

std::optional<Places> places_with(const std::vector<Cut>& cuts, std::uint32_t own_ranks,
                                  const std::vector<RankAssignment>& assignments,
                                  const JobPlacement& placement_of_job) {
  if (Places taken = places_of_taken(assignments, placement_of_job); !taken.empty()) return taken;
  std::unordered_map<std::string, std::uint32_t> stored_in;  // number of parts
  for (const Cut& cut : cuts) stored_in[cut.shard] = cut.of;
  const auto parts_stored = [&](const std::string& main_shard) {
    const auto cut = stored_in.find(main_shard);
    return cut == stored_in.end() ? 1 : cut->second;
  };
  const auto is_as_now = [&](const RankAssignment& assignment) {
    return parts_stored(assignment.main_shard) == placement_of_job.shares.at(assignment.rank).of;
  };
  if (own_ranks >= assignments.size() && std::all_of(assignments.begin(), assignments.end(), is_as_now))
    return std::nullopt;
  Places places;
  for (const RankAssignment& assignment : assignments) {
    const bool has_own = assignment.rank < own_ranks;
    const std::string& shard = has_own ? assignment.private_shard : assignments.front().private_shard;
    const auto [place, is_first] = places.try_emplace(shard, placement_of_job.places.at(shard));
    if (!has_own) add_once(place->second.owners, assignment.node);
  }
  for (const auto& [shard, naming] : sharers_in(assignments)) {
    const bool as_now = is_as_now(*naming.front());  // either all of them have a share of it, or none has
    const auto owners = nodes_under(naming);
    for (const std::string& part : parts_of(shard, parts_stored(shard))) {
      places[part] = as_now ? placement_of_job.places.at(part) : Place{owners, {}, owners, {}};
    }
  }
  for (const auto& [name, place] : placement_of_job.places) {
    if (place.parity) add_parity_of_what_is_there(place, places);
  }
  return places;
}

}  // namespace ckpt::core
