// Says whether the shards of a placement survive the loss of certain nodes. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/placement.hpp"

namespace ckpt::placement {

// The set of nodes whose memory is lost. contains() takes constant time, clear() a time that grows with the lost nodes.
class LostNodes {
 public:
  explicit LostNodes(std::uint32_t nodes) : is_lost_(nodes, 0) {}
  // Adds a lost node. Throws std::invalid_argument if there is no such node. Adding a node twice changes nothing.
  void add(std::uint32_t node);
  void clear();
  bool contains(std::uint32_t node) const { return is_lost_[node] != 0; }
  const std::vector<std::uint32_t>& list() const { return list_; }

 private:
  std::vector<std::uint8_t> is_lost_;
  std::vector<std::uint32_t> list_;
};

// True if every part still has a holder. Takes O(lost * parts per node * copies), however many nodes there are.
bool survives(const Placement& placement, const LostNodes& lost);

}  // namespace ckpt::placement
