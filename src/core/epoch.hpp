// An epoch is the number of a leader's term. It contains the number of the node that leads, so two nodes can never lead
// with the same epoch. That holds even if the store loses the record of an election.
#pragma once

#include <cstdint>

#include "core/types.hpp"

namespace ckpt::core {

inline constexpr unsigned epoch_node_bits = 24;  // a job has at most 2^24 nodes
inline constexpr std::uint64_t epoch_node_mask = (std::uint64_t{1} << epoch_node_bits) - 1;

constexpr std::uint64_t epoch_of(std::uint64_t term, NodeId node) {
  return (term << epoch_node_bits) | (node & epoch_node_mask);
}
constexpr std::uint64_t term_of(std::uint64_t epoch) { return epoch >> epoch_node_bits; }
// The epoch with which `node` takes over. `highest`: the newest epoch that `node` knows.
constexpr std::uint64_t next_epoch(std::uint64_t highest, NodeId node) { return epoch_of(term_of(highest) + 1, node); }

}  // namespace ckpt::core
