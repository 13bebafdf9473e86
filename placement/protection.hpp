// Ways to protect a job, side by side: what each stores and sends, and what are the odds. Nodes form groups; a group
// loses nothing as long as it loses no more than it tolerates. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "placement/parity.hpp"

namespace ckpt::placement {

// Groups of `members` nodes, each group surviving `tolerated` losses: by copies (of everything, on every member), or by
// that many parity pieces per stripe.
struct Protection {
  bool parity = false;
  std::uint32_t members = 2;
  std::uint32_t tolerated = 1;

  static Protection copies(std::uint32_t copies) { return {false, copies, copies - 1}; }
  static Protection parity_of(std::uint32_t members, std::uint32_t parity) { return {true, members, parity}; }
  bool operator==(const Protection&) const = default;
};

// "copies(2)", "xor(4)", "rs(8,2)"
std::string name(const Protection& protection);

// In a node's own shard, for shards of one length that the group's segments divide: besides the shard itself, and per
// version.
double extra_stored(const Protection& protection);
double sent(const Protection& protection, Route route = Route::gathered);

// The share of all sets of `lost` out of `nodes` that lose nothing. Throws std::invalid_argument unless groups divide
// the nodes and lost <= nodes. O(nodes / members * lost * tolerated) time, no overflow at any size.
double recoverable(const Protection& protection, std::uint32_t nodes, std::uint32_t lost);

}  // namespace ckpt::placement
