#include "core/leader/restore_chain.hpp"

#include <algorithm>

#include "core/leader/restore_decision.hpp"

namespace ckpt::core {

std::vector<NodeId> sources_in_chain(NodeId node, NodeId chain_from, const std::vector<NodeId>& fetching,
                                     const Holders& holders) {
  const std::size_t count = fetching.size();
  const std::size_t chains = std::min(holders.size(), count);
  if (chains == 0 || count < 2) return {};
  // Positions count along the ring, from chain_from on.
  const auto index_of = [&](NodeId id) {
    return std::lower_bound(fetching.begin(), fetching.end(), id) - fetching.begin();
  };
  const auto begin = static_cast<std::size_t>(index_of(chain_from));
  const std::size_t at = (static_cast<std::size_t>(index_of(node)) + count - begin) % count;
  const auto* holder = std::lower_bound(holders.begin(), holders.end(), chain_from,
                                        [](const Holder& each, NodeId id) { return each.node < id; });
  const auto first_holder = static_cast<std::size_t>(holder - holders.begin());
  const auto chain_of = [&](std::size_t position) { return position * chains / count; };
  std::vector<NodeId> sources;
  if (at != 0 && chain_of(at - 1) == chain_of(at)) sources.push_back(fetching[(begin + at - 1) % count]);
  for (std::size_t i = 0; i < holders.size() && sources.size() < sources_max; ++i)
    sources.push_back(holders[(first_holder + chain_of(at) + i) % holders.size()].node);
  return sources;
}

NodeId begin_of_chain(const Place& place, const Holders& holders) {
  for (const auto* nodes : {&place.capturers, &place.holders}) {
    for (const NodeId node : *nodes) {
      if (is_held_by(holders, node)) return node;
    }
  }
  return holders.front().node;
}

}  // namespace ckpt::core
