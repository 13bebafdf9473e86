// Where a member stands in a stripe of a parity group, found by asking the layout who stands at each position.
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
