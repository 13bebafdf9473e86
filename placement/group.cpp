#include "placement/group.hpp"

#include <algorithm>

#include "placement/pattern.hpp"

namespace ckpt::placement {

std::vector<std::uint32_t> group_holders(std::uint32_t node, std::uint32_t node_count, std::uint32_t copies) {
  return Pattern(Strategy::group, node_count, std::min(copies, node_count)).holders(node);
}

}  // namespace ckpt::placement
