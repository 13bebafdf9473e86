// Computes exactly how likely the checkpoints in memory survive the loss of k nodes. The answer is a share of all sets
// of k nodes: those whose loss leaves every part a holder. All sets are equally likely here, so failure domains change
// nothing. For failures that come together see sampling.hpp and fault_trace.hpp. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "placement/pattern.hpp"

namespace ckpt::placement {

struct Odds {
  double survival = 1;
  double loss = 0;  // 1 - survival, computed on its own: precise even far below 1e-16
  // How many sets of lost nodes there are (`total`), and how many of them leave every part a holder. Only for up to 64
  // nodes.
  struct Count {
    std::uint64_t survivors = 0;
    std::uint64_t total = 0;
    bool operator==(const Count&) const = default;
  };
  std::optional<Count> count;
};

// The odds for `lost` of the nodes in `cells`, with all sets equally likely. Throws std::invalid_argument if there are
// fewer nodes. The relative error of either figure is about 1e-10 for 100,000 nodes. O(nodes) evaluations of the cells.
Odds survival_odds(std::span<const Cell> cells, std::uint32_t lost);

inline Odds survival_odds(const Pattern& pattern, std::uint32_t lost) { return survival_odds(pattern.cells(), lost); }

// The two methods behind survival_odds. They agree where both apply.
Odds survival_by_counting(std::span<const Cell> cells, std::uint32_t lost);     // at most 64 nodes
Odds survival_by_integration(std::span<const Cell> cells, std::uint32_t lost);  // any number

}  // namespace ckpt::placement
