#include "placement/group.hpp"

#include <algorithm>

namespace ckpt::placement {

std::vector<std::uint32_t> group_holders(std::uint32_t node, std::uint32_t node_count, std::uint32_t copies) {
  const std::uint32_t wanted = std::min(copies, node_count);
  const std::uint32_t groups = node_count / wanted;
  const std::uint32_t group = std::min(node / wanted, groups - 1);
  const std::uint32_t first = group * wanted;
  const std::uint32_t size = group == groups - 1 ? node_count - first : wanted;

  std::vector<std::uint32_t> holders;
  holders.reserve(wanted);
  for (std::uint32_t i = 0; i < wanted; ++i) holders.push_back(first + (node - first + i) % size);
  return holders;
}

}  // namespace ckpt::placement
