#include "core/leader/restore_chain.hpp"

#include <algorithm>

#include "core/leader/restore_decision.hpp"

namespace ckpt::core {

std::vector<NodeId> sources_in_chain(NodeId node, const std::vector<NodeId>& fetching, const Holders& holders) {
  const std::size_t chains = std::min(holders.size(), fetching.size());
  if (chains == 0 || fetching.size() < 2) return {};
  const auto at = static_cast<std::size_t>(std::lower_bound(fetching.begin(), fetching.end(), node) - fetching.begin());
  const auto chain_of = [&](std::size_t position) { return position * chains / fetching.size(); };
  std::vector<NodeId> sources;
  if (at != 0 && chain_of(at - 1) == chain_of(at)) sources.push_back(fetching[at - 1]);
  for (std::size_t i = 0; i < holders.size() && sources.size() < sources_max; ++i)
    sources.push_back(holders[(chain_of(at) + i) % holders.size()].node);
  return sources;
}

}  // namespace ckpt::core
