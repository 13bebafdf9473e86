#include "placement/arrange.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

namespace ckpt::placement {
namespace {

using Nodes = std::vector<std::uint32_t>;
using NodeSpan = std::span<const std::uint32_t>;

// Orders a ring so that nodes of one domain are at least `window` apart. Nodes are dealt row by row into columns of
// `window` or more nodes, and read column by column. If a domain fits into one row, each of its nodes is in another
// column. In the ring, they are then at least a column's length apart. Larger domains come first, so that a domain that
// fills a row exactly starts at the beginning of a row.
Nodes ring_order(const Domains& domains, NodeSpan nodes, std::uint32_t window) {
  const Nodes dealt = domains.ordered(nodes);
  const std::size_t columns = nodes.size() / window;
  Nodes ring;
  ring.reserve(nodes.size());
  for (std::size_t column = 0; column < columns; ++column) {
    for (std::size_t i = column; i < dealt.size(); i += columns) ring.push_back(dealt[i]);
  }
  return ring;
}

// Takes `count` nodes of `ordered` from as many different domains as possible, from the largest domains first. The
// nodes that are left are then as easy to separate as possible (the step of the Gale-Ryser construction). `depth`: the
// level of the domains that this call looks at.
void take_spread(const Domains& domains, NodeSpan ordered, std::size_t depth, std::size_t count, Nodes& taken) {
  struct Child {
    NodeSpan nodes;
    std::size_t quota = 0;
  };
  std::vector<Child> children;
  bool has_domains = false;
  for (std::size_t first = 0; first < ordered.size();) {
    std::size_t last = first + 1;
    const auto path = domains.path(ordered[first]);
    if (path.size() > depth) {
      has_domains = true;
      const auto in_child = [&](std::uint32_t node) {
        const auto other = domains.path(node);
        return other.size() > depth && other[depth] == path[depth];
      };
      while (last < ordered.size() && in_child(ordered[last])) ++last;
    }
    children.push_back({ordered.subspan(first, last - first)});
    first = last;
  }
  if (!has_domains) {
    taken.insert(taken.end(), ordered.begin(), ordered.begin() + static_cast<std::ptrdiff_t>(count));
    return;
  }
  std::stable_sort(children.begin(), children.end(),
                   [](const Child& a, const Child& b) { return a.nodes.size() > b.nodes.size(); });
  for (std::size_t left = count; left > 0;) {
    for (auto& child : children) {
      if (left == 0) break;
      if (child.quota == child.nodes.size()) continue;
      ++child.quota;
      --left;
    }
  }
  for (const auto& child : children) {
    if (child.quota > 0) take_spread(domains, child.nodes, depth + 1, child.quota, taken);
  }
}

Nodes take_spread(const Domains& domains, Nodes& ordered, std::size_t count) {
  Nodes taken;
  take_spread(domains, ordered, 0, count, taken);
  Nodes sorted = taken;
  std::sort(sorted.begin(), sorted.end());
  std::erase_if(ordered, [&](std::uint32_t node) { return std::binary_search(sorted.begin(), sorted.end(), node); });
  return taken;
}

// Orders the two overlapping sets of a cell. A node that is only in the first set shares no part with a node that is
// only in the second. So pairs of nodes that share the most domains go there, one into each set. The other nodes are in
// the middle, in both sets.
Nodes pair_order(const Domains& domains, Nodes& ordered, const Cell& cell) {
  const std::uint32_t side = cell.size - cell.window;
  Nodes nodes = take_spread(domains, ordered, cell.window);
  const Nodes more = take_spread(domains, ordered, side);
  nodes.insert(nodes.end(), more.begin(), more.end());

  std::vector<std::tuple<std::size_t, std::uint32_t, std::uint32_t>> opposites;  // shared levels, two nodes
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      opposites.emplace_back(domains.shared_levels(nodes[i], nodes[j]), nodes[i], nodes[j]);
    }
  }
  std::stable_sort(opposites.begin(), opposites.end(),
                   [](const auto& x, const auto& y) { return std::get<0>(x) > std::get<0>(y); });
  Nodes first;
  Nodes last;
  const auto is_placed = [&](std::uint32_t node) {
    return std::find(first.begin(), first.end(), node) != first.end() ||
           std::find(last.begin(), last.end(), node) != last.end();
  };
  for (const auto& [levels, a, b] : opposites) {
    if (first.size() == side) break;
    if (is_placed(a) || is_placed(b)) continue;
    first.push_back(a);
    last.push_back(b);
  }
  std::copy_if(nodes.begin(), nodes.end(), std::back_inserter(first),
               [&](std::uint32_t node) { return !is_placed(node); });
  first.insert(first.end(), last.begin(), last.end());
  return first;
}

// Deals the nodes to `groups` groups of equal size, like cards. Of a domain of n nodes, at any level, a group gets at
// most ceil(n / groups) nodes. Fewer are not possible.
void deal_groups(const Nodes& ordered, std::uint32_t groups, Nodes& order) {
  for (std::size_t group = 0; group < groups; ++group) {
    for (std::size_t i = group; i < ordered.size(); i += groups) order.push_back(ordered[i]);
  }
}

Nodes numbers(std::uint32_t count) {
  Nodes nodes(count);
  std::iota(nodes.begin(), nodes.end(), 0);
  return nodes;
}

Nodes arrange_within_cells(const Pattern& pattern, const Domains& domains) {
  Nodes order = numbers(pattern.nodes());
  auto first = order.begin();
  for (const auto& cell : pattern.cells()) {
    for (std::uint32_t i = 0; i < cell.count; ++i, first += cell.size) {
      const Nodes ring = ring_order(domains, NodeSpan(first, first + cell.size), cell.window);
      std::copy(ring.begin(), ring.end(), first);
    }
  }
  return order;
}

Nodes arrange_in_cells_or_groups(const Pattern& pattern, const Domains& domains) {
  if (is_sharded(pattern.strategy()) || pattern.strategy() == Strategy::ring) {
    return arrange_within_cells(pattern, domains);
  }
  Nodes left = domains.ordered(numbers(pattern.nodes()));
  const Cell& last = pattern.cells().back();
  Nodes large;
  if (last.size > pattern.copies()) {
    large = last.shape == Shape::pair ? pair_order(domains, left, last) : take_spread(domains, left, last.size);
  }
  Nodes order;
  order.reserve(pattern.nodes());
  if (!left.empty()) deal_groups(left, static_cast<std::uint32_t>(left.size()) / pattern.copies(), order);
  order.insert(order.end(), large.begin(), large.end());
  return order;
}

// Exchanges pairs of nodes as long as that separates more. The construction above is optimal for one level of domains,
// and nearly optimal for several. Repair does the rest. It looks only at unseparated nodes whose domain is small enough
// to be spread. These are few, so for many nodes Repair takes far less time than the construction.
class Repair {
 public:
  Repair(const Pattern& pattern, const Domains& domains, Nodes& order)
      : pattern_(pattern), domains_(domains), order_(order), neighbours_(pattern.nodes()), position_(pattern.nodes()) {
    for (std::uint32_t position = 0; position < pattern.nodes(); ++position) {
      position_[order[position]] = position;
      for (const auto holder : pattern.holders(position)) {
        if (holder == position) continue;
        neighbours_[position].push_back(holder);
        neighbours_[holder].push_back(position);
      }
    }
    find_spreadable();
    for (auto& list : neighbours_) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
  }

  // Returns whether anything changed.
  bool settle(const std::vector<Unseparated>& pairs) {
    bool changed = false;
    for (const auto& pair : pairs) {
      // An earlier exchange may have separated the pair.
      if (!can_be_spread_[pair.domain] || !are_neighbours(pair.a, pair.b)) continue;
      changed = exchange(position_[pair.a]) || exchange(position_[pair.b]) || changed;
    }
    return changed;
  }

 private:
  void find_spreadable() {
    std::vector<std::uint32_t> sizes(domains_.count(), 0);
    for (const auto node : order_) {
      for (const auto domain : domains_.path(node)) ++sizes[domain];
    }
    // How many nodes of one domain can be separated: one in each group, and one more in a pair of overlapping sets. In
    // sharded patterns nodes stay in their cells, so that depends on the cell. There all domains count as small enough,
    // because these cells have few nodes.
    const std::uint32_t extra = pattern_.strategy() == Strategy::cover ? 1 : 0;
    const std::uint32_t room =
        is_sharded(pattern_.strategy()) ? pattern_.nodes() : pattern_.nodes() / pattern_.copies() + extra;
    for (const auto size : sizes) can_be_spread_.push_back(size <= room);
  }

  bool are_neighbours(std::uint32_t a, std::uint32_t b) const {
    const auto& list = neighbours_[position_[a]];
    return std::binary_search(list.begin(), list.end(), position_[b]);
  }

  // The positions [first, last) that the node at `position` may move to.
  std::pair<std::uint32_t, std::uint32_t> range_of(std::uint32_t position) const {
    if (!is_sharded(pattern_.strategy())) return {0, pattern_.nodes()};
    const auto place = pattern_.place_of(position);
    return {place.first, place.first + place.kind->size};
  }

  // The cost of two nodes that hold the same part. Each domain that they share counts 1, or 1000 if its nodes can be
  // spread.
  std::size_t cost_of(std::uint32_t a, std::uint32_t b) const {
    std::size_t cost = 0;
    for (const auto domain : domains_.path(a).first(domains_.shared_levels(a, b))) {
      cost += can_be_spread_[domain] ? 1000 : 1;
    }
    return cost;
  }

  // The cost of all domains that `node` shares with its neighbours, if it were at `position` and `other_node` at
  // `other`.
  std::size_t cost(std::uint32_t node, std::uint32_t position, std::uint32_t other_node, std::uint32_t other) const {
    std::size_t sum = 0;
    for (const auto at : neighbours_[position]) sum += cost_of(node, at == other ? other_node : order_[at]);
    return sum;
  }

  // Exchanges the node at `position` with the one for which the cost falls most. Returns false if it falls for none.
  bool exchange(std::uint32_t position) {
    const std::uint32_t node = order_[position];
    const std::size_t now = cost(node, position, node, position);
    std::size_t best_gain = 0;
    std::uint32_t best = position;
    const auto [first, last] = range_of(position);
    for (std::uint32_t other = first; other < last; ++other) {
      const std::uint32_t other_node = order_[other];
      const std::size_t before = now + cost(other_node, other, other_node, other);
      const std::size_t after = cost(node, other, other_node, position) + cost(other_node, position, node, other);
      if (before > after && before - after > best_gain) {
        best_gain = before - after;
        best = other;
      }
    }
    if (best == position) return false;
    std::swap(order_[position], order_[best]);
    position_[order_[position]] = position;
    position_[order_[best]] = best;
    return true;
  }

  const Pattern& pattern_;
  const Domains& domains_;
  Nodes& order_;
  std::vector<Nodes> neighbours_;    // [position], sorted: the positions that hold some part together with it
  Nodes position_;                   // of each node
  std::vector<bool> can_be_spread_;  // of each domain
};

}  // namespace

std::vector<std::uint32_t> arrange(const Pattern& pattern, const Domains& domains) {
  Nodes order = arrange_in_cells_or_groups(pattern, domains);
  auto pairs = unseparated(pattern, order, domains);
  if (pairs.empty()) return order;
  Repair repair(pattern, domains, order);
  constexpr int enough_passes = 4;
  for (int pass = 0; pass < enough_passes && repair.settle(pairs); ++pass) pairs = unseparated(pattern, order, domains);
  return order;
}

std::vector<Unseparated> unseparated(const Pattern& pattern, const std::vector<std::uint32_t>& order,
                                     const Domains& domains) {
  std::vector<Unseparated> found;
  for (std::uint32_t position = 0; position < pattern.nodes(); ++position) {
    const auto holders = pattern.holders(position);
    for (std::size_t i = 1; i < holders.size(); ++i) {
      const auto [a, b] = std::minmax(order[position], order[holders[i]]);
      const std::uint32_t domain = domains.shared(a, b);
      if (domain != no_domain) found.push_back({a, b, domain});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Unseparated& x, const Unseparated& y) { return std::tie(x.a, x.b) < std::tie(y.a, y.b); });
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

}  // namespace ckpt::placement
