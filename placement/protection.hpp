// Ways to protect a job, side by side: what each stores and sends, and what are the odds. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "placement/parity_layout.hpp"

namespace ckpt::placement {

// Whole copies of every shard, the node's own included, and besides them, where there are members, parity: `rows`
// parity pieces for every stripe of a group of that many nodes, of which so many may then be lost.
struct Protection {
  std::uint32_t copies = 2;
  std::uint32_t members = 0;  // of a parity group, at most; 0: no parity
  std::uint32_t rows = 0;

  static Protection of_copies(std::uint32_t copies) { return {copies, 0, 0}; }
  static Protection of_parity(std::uint32_t members, std::uint32_t rows) { return {1, members, rows}; }
  bool has_parity() const { return members != 0; }
  bool operator==(const Protection&) const = default;
};

// "copies(2)", "xor(4)", "rs(8,2)", "copies(2)+xor(4)"
std::string name(const Protection& protection);

// The reverse; "xor:4" and "rs:8,2" will do too. Throws std::invalid_argument, in half a sentence that says what it
// must be, unless copies are 1 to 16, rows 1 to 4 and members more than rows and at most 64.
Protection protection_named(std::string_view text);

// The functions below are for copies or for parity, not for both at once: std::invalid_argument.

// In a node's own shard, for shards of one length that the group's segments divide: besides the shard itself, and per
// checkpoint.
double extra_stored(const Protection& protection);
double sent(const Protection& protection, Route route = Route::direct);

// The share of all sets of `lost` out of `nodes` that lose nothing, where groups of `copies` or of `members` nodes are
// protected together. Throws std::invalid_argument unless groups divide
// the nodes and lost <= nodes. O(nodes / members * lost * tolerated) time, no overflow at any size.
double recoverable(const Protection& protection, std::uint32_t nodes, std::uint32_t lost);

}  // namespace ckpt::placement
