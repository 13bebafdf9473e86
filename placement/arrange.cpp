#include "placement/arrange.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>

namespace ckpt::placement {
namespace {

using Nodes = std::vector<std::uint32_t>;
using NodeSpan = std::span<const std::uint32_t>;

// An order of a ring in which nodes of one domain are at least `window` apart. Dealt row by row into columns of
// `window` or more, a domain that fits into one row has each node in another column; read column by column, neighbours
// in a row are a column's length apart. Larger domains first: one that fills a row exactly then starts a row.
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

// Takes `count` nodes of `ordered` from as many different domains as possible, from the largest ones: what is left is
// then as easy to separate as can be (the step of the Gale-Ryser construction). `depth`: the level to decide at.
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

// The two overlapping sets. The overlap is with everybody, so it gets the first set's nodes that share the least with
// those that are in the second set alone.
Nodes pair_order(const Domains& domains, Nodes& ordered, const Cell& cell) {
  const std::uint32_t only_one = cell.size - cell.window;
  Nodes first = take_spread(domains, ordered, cell.window);
  const Nodes second = take_spread(domains, ordered, only_one);
  const auto shares = [&](std::uint32_t node) {
    return std::any_of(second.begin(), second.end(),
                       [&](std::uint32_t other) { return domains.shared(node, other) != no_domain; });
  };
  std::stable_partition(first.begin(), first.end(), shares);
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

// Groups of equal size, dealt to one after the other: of any domain, whatever its level, a group gets at most
// ceil(size / groups), which is as few as can be.
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

}  // namespace

std::vector<std::uint32_t> arrange(const Pattern& pattern, const Domains& domains) {
  if (is_sharded(pattern.strategy()) || pattern.strategy() == Strategy::ring) {
    return arrange_within_cells(pattern, domains);
  }
  Nodes left = domains.ordered(numbers(pattern.nodes()));
  const Cell& last = pattern.cells().back();
  const bool has_large_cell = last.size > pattern.copies();
  Nodes large;
  if (has_large_cell) {
    large = last.shape == Shape::pair ? pair_order(domains, left, last) : take_spread(domains, left, last.size);
  }
  Nodes order;
  order.reserve(pattern.nodes());
  if (!left.empty()) deal_groups(left, static_cast<std::uint32_t>(left.size()) / pattern.copies(), order);
  order.insert(order.end(), large.begin(), large.end());
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
