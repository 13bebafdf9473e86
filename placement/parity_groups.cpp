#include "placement/parity_groups.hpp"

#include <algorithm>
#include <numeric>

namespace ckpt::placement {

namespace {

bool is_separated(const std::vector<std::uint32_t>& group, const Domains& domains) {
  for (std::size_t i = 0; i < group.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (domains.shared_levels(group[i], group[j]) != 0) return false;
    }
  }
  return true;
}

}  // namespace

// Deals the nodes to the groups like cards, so that neighbours get into different groups.
ParityGroups parity_groups(std::uint32_t nodes, std::uint32_t members_max, std::uint32_t rows, const Domains* domains) {
  std::vector<std::uint32_t> order(nodes);
  std::iota(order.begin(), order.end(), 0);
  if (domains != nullptr) order = domains->ordered(order);
  ParityGroups found;
  const std::uint32_t wanted = (nodes + members_max - 1) / members_max;
  found.groups.resize(std::clamp(wanted, 1u, std::max(1u, nodes / (rows + 1))));
  for (std::uint32_t i = 0; i < nodes; ++i) found.groups[i % found.groups.size()].push_back(order[i]);
  for (const auto& group : found.groups) {
    if (domains != nullptr && !is_separated(group, *domains)) ++found.unseparated;
  }
  return found;
}

}  // namespace ckpt::placement
