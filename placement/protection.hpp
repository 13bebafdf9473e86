// Protection says how a job's state is protected: by copies, by parity, or by both. The functions compare protections:
// what each stores and sends, and how likely it survives lost nodes. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "placement/parity_layout.hpp"

namespace ckpt::placement {

// Every shard has `copies` copies, the node's own included. If `members` is not 0, there is parity as well: a parity
// group has at most `members` nodes, and no shard is lost as long as at most `rows` nodes of a group are lost.
struct Protection {
  std::uint32_t copies = 2;
  std::uint32_t members = 0;  // most nodes of a parity group; 0: no parity
  std::uint32_t rows = 0;     // parity pieces per stripe (parity_layout.hpp); 0: no parity

  static Protection of_copies(std::uint32_t copies) { return {copies, 0, 0}; }
  static Protection of_parity(std::uint32_t members, std::uint32_t rows) { return {1, members, rows}; }
  bool has_parity() const { return members != 0; }
  bool operator==(const Protection&) const = default;
};

// The name that people write in options: "copies(2)", "xor(4)", "rs(8,2)" or "copies(2)+xor(4)".
std::string name(const Protection& protection);

// Parses a name, as name() returns it. Also takes "xor:4" and "rs:8,2". There must be 1 to 16 copies, 1 to 4 rows, and
// more members than rows and at most 64. Otherwise throws std::invalid_argument. The exception's text is half a
// sentence, "must be ...". The caller puts the name of the option before it.
Protection protection_named(std::string_view text);

// The functions below are for protections with copies alone or with parity alone. They throw std::invalid_argument for
// a protection with both.

// What a node stores besides its own shard, and what it sends per checkpoint. The unit is one shard. The figures assume
// that all shards are equally long and that parity needs no padding.
double extra_stored(const Protection& protection);
double sent(const Protection& protection, Route route = Route::direct);

// The probability that no shard is lost with `lost` random nodes out of `nodes`. The nodes are divided into groups of
// `copies` or of `members` nodes, which protect each other. Throws std::invalid_argument unless groups divide the nodes
// and lost <= nodes. O(nodes / members * lost * rows) time. Does not overflow at any size.
double recoverable(const Protection& protection, std::uint32_t nodes, std::uint32_t lost);

}  // namespace ckpt::placement
