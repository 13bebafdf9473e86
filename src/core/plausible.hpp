// Rejects epochs and incarnations that are too high to be real. Both grow by one at a time, so a number that is far
// above the last one comes from damage. If nodes believed it, there might soon be no higher number left.
#pragma once

#include <cstdint>

#include "core/checkpoint_id.hpp"
#include "core/epoch.hpp"

namespace ckpt::core {

inline constexpr std::uint64_t epoch_jump_max = epoch_of(std::uint64_t{1} << 24, 0);
inline constexpr std::uint64_t first_epoch_max = epoch_of(std::uint64_t{1} << 28, 0);  // while no epoch is known
// No epoch is higher, whatever epoch is known, because the known one may be damaged, too.
inline constexpr std::uint64_t epoch_max = epoch_of(std::uint64_t{1} << 36, 0);
inline constexpr std::uint64_t incarnation_jump_max = std::uint64_t{1} << 16;

// `known`: the newest number that this node knows; 0: none.
constexpr bool is_plausible_epoch(std::uint64_t known, std::uint64_t epoch) {
  if (epoch > epoch_max) return false;
  return epoch <= (known == 0 ? first_epoch_max : known + epoch_jump_max);
}

constexpr bool is_plausible_incarnation(std::uint64_t known, std::uint64_t incarnation) {
  if (incarnation > CheckpointId::incarnation_max - incarnation_jump_max) return incarnation <= known + 1;
  return known == 0 || incarnation <= known + incarnation_jump_max;
}

}  // namespace ckpt::core
