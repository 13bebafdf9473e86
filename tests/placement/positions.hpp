// Finds the position that a member of a parity group has in a stripe.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "placement/parity_layout.hpp"

namespace ckpt::placement {

inline std::uint32_t position_of(const ParityLayout& layout, std::uint32_t stripe, std::uint32_t member) {
  for (std::uint32_t position = 0; position < layout.members(); ++position)
    if (layout.member_at(stripe, position) == member) return position;
  throw std::logic_error("the member has no position in the stripe");
}

}  // namespace ckpt::placement
