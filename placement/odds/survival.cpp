#include "placement/odds/survival.hpp"

#include <stdexcept>
#include <string>

namespace ckpt::placement {

Odds survival_odds(std::span<const Cell> cells, std::uint32_t lost) {
  std::uint64_t nodes = 0;
  for (const auto& cell : cells) nodes += std::uint64_t{cell.size} * cell.count;
  if (lost > nodes) {
    throw std::invalid_argument(std::to_string(lost) + " lost nodes are too many: there are only " +
                                std::to_string(nodes) + " nodes");
  }
  return nodes <= 64 ? survival_by_counting(cells, lost) : survival_by_integration(cells, lost);
}

}  // namespace ckpt::placement
