// Numbers that a damaged record could claim. Epochs and incarnations only grow, by one at a time, so a jump beyond
// these bounds is damage: whoever believed it would soon have no number left.
#pragma once

#include <cstdint>

#include "protocol/version.hpp"

namespace ckpt::protocol {

inline constexpr std::uint64_t epoch_jump_max = std::uint64_t{1} << 32;
inline constexpr std::uint64_t first_epoch_max = std::uint64_t{1} << 40;  // for a node that knows of none yet
inline constexpr std::uint64_t epoch_max = std::uint64_t{1} << 48;        // of all: a node's own memory may be damaged
inline constexpr std::uint64_t incarnation_jump_max = std::uint64_t{1} << 16;

// `known`: the newest that this node knows of, 0: none.
constexpr bool is_plausible_epoch(std::uint64_t known, std::uint64_t epoch) {
  if (epoch > epoch_max) return false;
  return epoch <= (known == 0 ? first_epoch_max : known + epoch_jump_max);
}

constexpr bool is_plausible_incarnation(std::uint64_t known, std::uint64_t incarnation) {
  if (incarnation > Version::incarnation_max - incarnation_jump_max) return incarnation <= known + 1;
  return known == 0 || incarnation <= known + incarnation_jump_max;
}

}  // namespace ckpt::protocol
