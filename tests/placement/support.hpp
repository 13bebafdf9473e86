// Lists all subsets of a small set of nodes, for tests that try each of them.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <vector>

#include "placement/placement.hpp"

namespace ckpt::placement {

// Calls `visit` with each set of `chosen` out of `nodes` < 32 nodes, as a bit mask.
inline void each_subset(std::uint32_t nodes, std::uint32_t chosen, const std::function<void(std::uint32_t)>& visit) {
  for (std::uint32_t mask = 0; mask < (1u << nodes); ++mask) {
    if (std::popcount(mask) == static_cast<int>(chosen)) visit(mask);
  }
}

// The holder sets of a placement as bit masks, one for each part.
inline std::vector<std::uint32_t> holder_masks(const Placement& placement) {
  std::vector<std::uint32_t> masks;
  for (std::uint32_t home = 0; home < placement.nodes(); ++home) {
    std::uint32_t mask = 0;
    for (const auto node : placement.holders(home)) mask |= 1u << node;
    masks.push_back(mask);
  }
  return masks;
}

inline bool contains_a_set(std::uint32_t lost, const std::vector<std::uint32_t>& sets) {
  for (const auto set : sets) {
    if ((lost & set) == set) return true;
  }
  return false;
}

// How many of the sets of `lost` nodes leave every part a holder: by trying them all.
inline std::uint64_t survivors_by_exhaustion(std::uint32_t nodes, std::uint32_t lost,
                                             const std::vector<std::uint32_t>& sets) {
  std::uint64_t survivors = 0;
  each_subset(nodes, lost, [&](std::uint32_t mask) { survivors += contains_a_set(mask, sets) ? 0 : 1; });
  return survivors;
}

}  // namespace ckpt::placement
