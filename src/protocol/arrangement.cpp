#include "protocol/arrangement.hpp"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "placement/parity_groups.hpp"
#include "placement/placement.hpp"
#include "protocol/lists.hpp"

namespace ckpt::protocol {

namespace {

using placement::Domains;
using placement::Strategy;

struct Nodes {
  std::vector<NodeId> ids;  // in the order of their lowest rank: one that is replaced moves no other
  std::unordered_map<NodeId, std::string> domains;
};

Nodes nodes_of(const std::vector<Seat>& seats) {
  Nodes nodes;
  for (const Seat& seat : seats) {
    if (nodes.domains.emplace(seat.node, seat.domain).second) nodes.ids.push_back(seat.node);
  }
  return nodes;
}

// The tree of these nodes' domains, as placement/ reads it; none unless some node names its own.
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

// For every node, those that hold what it captures: itself first.
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

// Ranks that share a shard, so that neighbours sit on different nodes, and in different domains, where that is
// possible.
std::vector<const Seat*> ring_of(const std::vector<const Seat*>& sharers, std::uint32_t copies) {
  std::vector<Seat> seats;
  for (const Seat* seat : sharers) seats.push_back(*seat);
  const Nodes nodes = nodes_of(seats);
  const auto placed = place(Strategy::ring, nodes.ids, copies, nodes.domains);
  std::map<NodeId, std::vector<const Seat*>> left;
  for (const Seat* seat : sharers) left[seat->node].push_back(seat);
  std::vector<const Seat*> ring;
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

// Where ranks sit, each node once, in their order.
std::vector<NodeId> nodes_under(const std::vector<const Seat*>& seats) {
  std::vector<NodeId> nodes;
  std::unordered_set<NodeId> seen;
  for (const Seat* seat : seats) {
    if (seen.insert(seat->node).second) nodes.push_back(seat->node);
  }
  return nodes;
}

std::unordered_map<std::string, std::vector<const Seat*>> sharers_in(const std::vector<Seat>& seats) {
  std::unordered_map<std::string, std::vector<const Seat*>> sharers;
  sharers.reserve(seats.size());
  for (const Seat& seat : seats) sharers[seat.main_shard].push_back(&seat);
  return sharers;
}

// What of its rank's shards is kept on a node in the first place: the part that it captures first, unless a rank before
// it names the same undivided shard; and its private shard.
struct Homes {
  std::map<NodeId, std::vector<std::string>> main;
  std::map<NodeId, std::vector<std::string>> private_;
};

Homes homes_of(const std::vector<Seat>& seats, const std::map<Rank, Share>& shares) {
  Homes homes;
  std::set<std::string> taken;
  for (const Seat& seat : seats) {
    const Share& share = shares.at(seat.rank);
    const std::string part = part_name(seat.main_shard, share.first, share.of);
    if (taken.insert(part).second) homes.main[seat.node].push_back(part);
    homes.private_[seat.node].push_back(seat.private_shard);
  }
  return homes;
}

// The members' n-th shards make up a group of shards, for every n.
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

void add_parity(const Nodes& nodes, const std::vector<Seat>& seats, const placement::Protection& protection,
                Arrangement& arrangement) {
  const auto count = static_cast<std::uint32_t>(nodes.ids.size());
  const auto domains = domains_of(nodes.ids, nodes.domains);
  const auto grouped =
      placement::parity_groups(count, protection.members, protection.rows, domains ? &*domains : nullptr);
  Homes homes = homes_of(seats, arrangement.shares);
  for (const auto& group : grouped.groups) {
    const auto rows = std::min(protection.rows, static_cast<std::uint32_t>(group.size()) - 1);
    if (rows == 0) continue;
    std::vector<NodeId> members;
    for (const std::uint32_t index : group) members.push_back(nodes.ids[index]);
    add_parity(members, rows, homes.main, arrangement.places);
    add_parity(members, rows, homes.private_, arrangement.places);
  }
  if (grouped.unseparated != 0) {
    arrangement.notice += std::string(arrangement.notice.empty() ? "" : "; ") + std::to_string(grouped.unseparated) +
                          " parity groups have several members in one failure domain; name more domains, or ask for "
                          "smaller groups";
  }
}

}  // namespace

Arrangement arrange(const std::vector<Seat>& seats, std::optional<Strategy> strategy,
                    const placement::Protection& protection) {
  const std::uint32_t copies = protection.copies;
  Arrangement arrangement;
  const Nodes nodes = nodes_of(seats);
  const bool shards_are_cut = !strategy || placement::is_sharded(*strategy);
  const Strategy replicating = shards_are_cut ? Strategy::group : *strategy;
  const auto partners = partners_of(nodes, replicating, copies, arrangement.notice);
  const std::uint32_t wanted = std::min(copies, static_cast<std::uint32_t>(nodes.ids.size()));

  // The nodes that capture it hold it, and where they are too few, the partners of the first one too.
  const auto complete = [&](Place& place, std::uint32_t holders) {
    place.holders = place.capturers;
    for (const NodeId partner : partners.at(place.capturers.front())) add_once(place.holders, partner);
    place.holders.resize(std::min<std::size_t>(holders, place.holders.size()));
  };

  arrangement.places.reserve(2 * seats.size());
  for (const Seat& seat : seats) {
    Place& own = arrangement.places[seat.private_shard];
    own.owners = own.capturers = {seat.node};
    complete(own, wanted);
  }
  for (const auto& [shard, naming] : sharers_in(seats)) {
    const auto count = static_cast<std::uint32_t>(naming.size());
    const std::uint32_t stored = parts_stored(strategy, copies, count);
    const bool is_cut = shards_are_cut && stored < count && count <= parts_max;
    const auto ring = is_cut ? ring_of(naming, stored) : naming;
    for (std::uint32_t i = 0; i < count; ++i) {
      const Share share = is_cut ? Share{i, count, stored} : Share{};
      arrangement.shares[ring[i]->rank] = share;
      for (const std::string& part : parts_of(shard, share))
        add_once(arrangement.places[part].capturers, ring[i]->node);
    }
    const auto owners = nodes_under(naming);
    for (const std::string& part : parts_of(shard, is_cut ? count : 1)) {
      Place& place = arrangement.places[part];
      place.owners = owners;
      complete(place, is_cut && strategy == Strategy::sharded ? 1 : wanted);
    }
  }
  if (protection.has_parity()) add_parity(nodes, seats, protection, arrangement);
  return arrangement;
}

std::optional<Places> places_with(const std::vector<Cut>& cuts, const std::vector<Seat>& seats,
                                  const Arrangement& arrangement) {
  std::unordered_map<std::string, std::uint32_t> stored_in;  // so many parts
  for (const Cut& cut : cuts) stored_in[cut.shard] = cut.of;
  const auto parts_stored = [&](const std::string& main_shard) {
    const auto cut = stored_in.find(main_shard);
    return cut == stored_in.end() ? 1 : cut->second;
  };
  const auto is_as_now = [&](const Seat& seat) {
    return parts_stored(seat.main_shard) == arrangement.shares.at(seat.rank).of;
  };
  if (std::all_of(seats.begin(), seats.end(), is_as_now)) return std::nullopt;
  Places places;
  for (const Seat& seat : seats) places[seat.private_shard] = arrangement.places.at(seat.private_shard);
  for (const auto& [shard, naming] : sharers_in(seats)) {
    const bool as_now = is_as_now(*naming.front());  // all of them have a share of it, or none
    const auto owners = nodes_under(naming);
    for (const std::string& part : parts_of(shard, parts_stored(shard))) {
      places[part] = as_now ? arrangement.places.at(part) : Place{owners, {}, owners, {}};
    }
  }
  const auto is_there = [&](const std::string& shard) { return shard.empty() || places.contains(shard); };
  for (const auto& [name, place] : arrangement.places) {
    if (!place.parity) continue;
    const auto& shards = place.parity->shards;
    if (std::all_of(shards.begin(), shards.end(), is_there)) places[name] = place;
  }
  return places;
}

}  // namespace ckpt::protocol
