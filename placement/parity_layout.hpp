// Parity instead of copies: how a group of n members keeps p parity pieces for every n - p of its data segments, so
// that any p members may be lost, for p / (n - p) extra bytes.
//
// Every member's shard counts as if padded with zeros to the longest one's length L, and is cut into n - p segments of
// ceil(L / (n - p)) bytes, rounded up to whole units (a digest leaf, say). There are n stripes. A stripe has n
// positions, one on each member: its data columns 0 .. n-p-1, then its parity rows.
//
//   position q of stripe j is on member (j + p + q) mod n       so parity row r of stripe j is on member (j + r) mod n
//   segment c of member m is column c of stripe (m - p - c) mod n
//
//   n = 4, p = 1      member 0   member 1   member 2   member 3        m.c: segment c of member m
//   stripe 0          parity     1.0        2.1        3.2
//   stripe 1          0.2        parity     2.0        3.1
//   stripe 2          0.1        1.2        parity     3.0
//   stripe 3          0.0        1.1        2.2        parity
//
// A segment is always the same column, so that one coefficient per row (kernels/erasure_code.hpp, whose positions these
// are) belongs to it wherever it is. A parity piece is as long as the longest segment of its stripe: where all have
// ended nothing is stored. Which shards are padded how is known to everyone from the lengths.
//
// Pure; a layout is an immutable value of O(n) memory, safe to share by threads.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/placement.hpp"

namespace ckpt::placement {

inline constexpr std::uint32_t max_parity_members = 64;
inline constexpr std::uint32_t max_parity_rows = 4;
inline constexpr std::uint64_t parity_unit_bytes = 64u << 10;  // between agents: a digest leaf

// How sources come to where parity is made.
enum class Route : std::uint8_t {
  direct,    // every source goes to the holders of all rows
  gathered,  // every source goes to the holder of row 0, which makes all rows and passes the others on
  local,     // everybody has all sources: nothing is sent
};

// A source or a finished parity row on its way.
struct ParityTransfer {
  std::uint32_t stripe = 0;
  std::uint32_t position = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  ByteRange bytes;  // of the sender's shard, or of the parity piece
  bool operator==(const ParityTransfer&) const = default;
};

class ParityLayout {
 public:
  // Of members whose shards have these lengths. Throws std::invalid_argument, in one sentence, unless
  // 1 <= parity <= 4, parity < members <= 64 and unit_bytes > 0.
  ParityLayout(std::vector<std::uint64_t> lengths_bytes, std::uint32_t parity, std::uint64_t unit_bytes);

  std::uint32_t members() const { return static_cast<std::uint32_t>(lengths_.size()); }
  std::uint32_t parity() const { return parity_; }
  std::uint32_t columns() const { return members() - parity_; }  // data segments of a stripe, and of a member
  std::uint64_t length_bytes(std::uint32_t member) const { return lengths_[member]; }
  std::uint64_t segment_bytes() const { return segment_bytes_; }

  bool is_parity(std::uint32_t position) const { return position >= columns(); }
  std::uint32_t member_at(std::uint32_t stripe, std::uint32_t position) const;
  std::uint32_t stripe_of(std::uint32_t member, std::uint32_t column) const;

  // The bytes of the member's shard that are its segment `column`: shorter, or none, where the shard ends.
  ByteRange segment(std::uint32_t member, std::uint32_t column) const;
  // Of each parity piece of the stripe.
  std::uint64_t parity_bytes(std::uint32_t stripe) const { return parity_bytes_[stripe]; }
  // What is stored at a position of a stripe: of the segment, or of the parity piece. Zeros follow.
  std::uint64_t stored_bytes(std::uint32_t stripe, std::uint32_t position) const;

  // Who sends what to whom so that all parity pieces come to be; nothing empty. A receiver of sources combines column
  // c with coefficient (row, c), in any order.
  std::vector<ParityTransfer> transfers(Route route) const;
  // All parity pieces that the member holds; stored in one they lie behind one another, row by row.
  std::uint64_t parity_bytes_of(std::uint32_t member) const { return row_offset(member, parity_); }
  std::uint32_t stripe_of_row(std::uint32_t member, std::uint32_t row) const {
    return (member + members() - row) % members();
  }
  std::uint64_t row_offset(std::uint32_t member, std::uint32_t row) const;

 private:
  std::vector<std::uint64_t> lengths_;
  std::uint32_t parity_;
  std::uint64_t segment_bytes_;
  std::vector<std::uint64_t> parity_bytes_;  // [stripe]
};

}  // namespace ckpt::placement
