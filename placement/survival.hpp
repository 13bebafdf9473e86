// The odds that everything can be had from memory, exactly: of all sets of k lost nodes, the share that leaves every
// part a holder. A function of the cells alone, so failure domains do not change it: they matter where failures are not
// independent, which sampling.hpp and fault_trace.hpp deal with. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "placement/pattern.hpp"

namespace ckpt::placement {

struct Odds {
  double survival = 1;
  double loss = 0;  // 1 - survival, with its own relative precision: it may be far below 1e-16
  // Up to 64 nodes the count itself: survival = survivors / total.
  struct Count {
    std::uint64_t survivors = 0;
    std::uint64_t total = 0;
    bool operator==(const Count&) const = default;
  };
  std::optional<Count> count;
};

// `lost` nodes of those in `cells`, each set of them equally likely. Throws std::invalid_argument when there are fewer
// nodes. Relative error of either figure about 1e-10 for 100,000 nodes; O(nodes) evaluations of the cells.
Odds survival_odds(std::span<const Cell> cells, std::uint32_t lost);

inline Odds survival_odds(const Pattern& pattern, std::uint32_t lost) { return survival_odds(pattern.cells(), lost); }

// The two ways behind survival_odds, which agree where both apply.
Odds survival_by_counting(std::span<const Cell> cells, std::uint32_t lost);     // at most 64 nodes
Odds survival_by_integration(std::span<const Cell> cells, std::uint32_t lost);  // any number

}  // namespace ckpt::placement
