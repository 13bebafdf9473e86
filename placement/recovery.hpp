// What a placement gives back after nodes were lost: whether all shards can be had from memory, and who then sends what
// to whom. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/placement.hpp"

namespace ckpt::placement {

// Nodes whose memory is gone, for quick and repeated questions.
class LostNodes {
 public:
  explicit LostNodes(std::uint32_t nodes) : is_lost_(nodes, 0) {}
  // Throws std::invalid_argument on a node that is unknown; adding one twice changes nothing.
  void add(std::uint32_t node);
  void clear();
  bool contains(std::uint32_t node) const { return is_lost_[node] != 0; }
  const std::vector<std::uint32_t>& list() const { return list_; }

 private:
  std::vector<std::uint8_t> is_lost_;
  std::vector<std::uint32_t> list_;
};

// Whether every part has a holder left. O(lost * parts per node * copies), whatever the number of nodes.
bool survives(const Placement& placement, const LostNodes& lost);

struct RecoveryPlan {
  std::vector<std::uint32_t> lost_shards;  // with a part that no node has any more; empty: recoverable
  std::vector<Transfer> restore;           // until every owner has all of its shard, lost nodes having been replaced
  std::vector<Transfer> protect;           // until every node stores again what the placement gives it
};

// Every transfer comes from a live holder, of several the one that has sent the least so far. Transfers of a lost
// shard's remaining parts are left out. O(nodes * copies), for sharded placements O(nodes * nodes per shard): there,
// every owner fetches the parts it does not store.
RecoveryPlan plan_recovery(const Placement& placement, const LostNodes& lost);

}  // namespace ckpt::placement
