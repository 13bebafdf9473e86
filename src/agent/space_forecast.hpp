// SpaceForecast computes how much more of the arena's memory this node will need. Only the agent's core thread uses it.
#pragma once

#include <cstdint>

#include "agent/peers.hpp"
#include "agent/pieces/segments.hpp"
#include "placement/placement.hpp"

namespace ckpt::agent {

class TrainerManager;

class SpaceForecast {
 public:
  // All references outlive this object.
  SpaceForecast(const placement::Protection& protection, const Segments& segments, const Peers& peers,
                const TrainerManager& trainers)
      : protection_(protection), segments_(segments), peers_(peers), trainers_(trainers) {}

  // Returns the bytes that this node will still need for copies and parity of peers' shards. Assumes that the segments
  // of each rank take `rank_bytes`.
  std::uint64_t bytes_for_peers(std::uint64_t rank_bytes) const;
  // Returns the bytes of all slots that the agent still has to make, if each piece of a main shard has `piece_bytes`.
  // It counts the slots of this node's ranks that have no slots yet, and the slots for peers' pieces.
  std::uint64_t bytes_to_come(std::uint64_t piece_bytes) const;

 private:
  const placement::Protection protection_;
  const Segments& segments_;
  const Peers& peers_;
  const TrainerManager& trainers_;
};

}  // namespace ckpt::agent
