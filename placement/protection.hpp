// Protection says how a job's state is protected: by copies, by parity, or by both. The functions compare what each way
// stores and sends, and how likely it survives. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "placement/parity_layout.hpp"

namespace ckpt::placement {

// Every shard has `copies` copies, the node's own included. With `members` > 0 there is parity as well, in groups of at
// most so many nodes. Each stripe of a group has `rows` parity pieces, so the group may lose `rows` nodes.
struct Protection {
  std::uint32_t copies = 2;
  std::uint32_t members = 0;  // most nodes of a parity group; 0: no parity
  std::uint32_t rows = 0;

  static Protection of_copies(std::uint32_t copies) { return {copies, 0, 0}; }
  static Protection of_parity(std::uint32_t members, std::uint32_t rows) { return {1, members, rows}; }
  bool has_parity() const { return members != 0; }
  bool operator==(const Protection&) const = default;
};

// "copies(2)", "xor(4)", "rs(8,2)", "copies(2)+xor(4)"
std::string name(const Protection& protection);

// The reverse of name(); also takes "xor:4" and "rs:8,2". Throws std::invalid_argument, with half a sentence that says
// what the text must be, unless copies are 1 to 16, rows 1 to 4, and members more than rows and at most 64.
Protection protection_named(std::string_view text);

// The functions below take copies or parity. They throw std::invalid_argument for both at once.

// What a node stores besides its own shard, and what it sends per checkpoint, as shares of that shard. All shards have
// one length, which the group's segments divide.
double extra_stored(const Protection& protection);
double sent(const Protection& protection, Route route = Route::direct);

// The share of all sets of `lost` out of `nodes` nodes that lose nothing. Groups of `copies` or of `members` nodes are
// protected together. Throws std::invalid_argument unless groups divide the nodes and lost <= nodes. O(nodes / members
// * lost * tolerated) time, no overflow at any size.
double recoverable(const Protection& protection, std::uint32_t nodes, std::uint32_t lost);

}  // namespace ckpt::placement
