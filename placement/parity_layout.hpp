// ParityLayout says which member of a parity group stores which bytes of data and of parity. Here a member is a node of
// the group, and a segment is a range of a member's shard. Any p of the n members may be lost. For that, parity takes
// p / (n - p) extra bytes for each byte of data.
//
// Every member's shard counts as if zeros padded it to the longest shard's length L. The shard is cut into n - p
// segments of ceil(L / (n - p)) bytes, rounded up to whole units (digest leaves, for example). There are n stripes. A
// stripe has n positions, one on each member: first n - p data columns, numbered from 0, then p parity rows.
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
// Segment c of any member is column c of its stripe. So the coefficients of segment c are the same on every member
// (kernels/erasure_code.hpp uses these positions). A parity piece is as long as the longest segment of its stripe.
// Padding is not stored, because it follows from the lengths of the shards.
//
// Pure functions. A ParityLayout never changes, so threads may share it. It takes O(n) memory.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/placement.hpp"

namespace ckpt::placement {

inline constexpr std::uint32_t max_parity_members = 64;
inline constexpr std::uint32_t max_parity_rows = 4;
inline constexpr std::uint64_t parity_unit_bytes = 64u << 10;  // the unit that agents use: one digest leaf

// How the segments of a stripe reach the members that encode its parity.
enum class Route : std::uint8_t {
  direct,    // every segment goes to the holders of all rows
  gathered,  // every segment goes to the holder of row 0, which encodes all rows and sends the other rows on
  local,     // every member has all segments, so nothing is sent
};

// One transfer of a segment, or of a finished parity row, from one member to another.
struct ParityTransfer {
  std::uint32_t stripe = 0;
  std::uint32_t position = 0;  // in the stripe: the position of the segment or parity row that is sent
  std::uint32_t from = 0;      // a member
  std::uint32_t to = 0;        // a member
  ByteRange bytes;             // what to send: a range of the sender's shard, or of the parity piece
  bool operator==(const ParityTransfer&) const = default;
};

class ParityLayout {
 public:
  // `lengths_bytes[m]`: the length of member m's shard. `parity`: p. Throws std::invalid_argument unless
  // 1 <= parity <= 4, parity < members <= 64 and unit_bytes > 0.
  ParityLayout(std::vector<std::uint64_t> lengths_bytes, std::uint32_t parity, std::uint64_t unit_bytes);

  std::uint32_t members() const { return static_cast<std::uint32_t>(lengths_.size()); }
  std::uint32_t parity() const { return parity_; }
  std::uint32_t columns() const { return members() - parity_; }  // n - p: segments of a stripe, and of a shard
  std::uint64_t length_bytes(std::uint32_t member) const { return lengths_[member]; }  // of the member's shard
  std::uint64_t segment_bytes() const { return segment_bytes_; }

  bool is_parity(std::uint32_t position) const { return position >= columns(); }
  std::uint32_t member_at(std::uint32_t stripe, std::uint32_t position) const;
  std::uint32_t stripe_of(std::uint32_t member, std::uint32_t column) const;

  // Where segment `column` lies in the member's shard. The last segments are shorter or empty if the shard ends there.
  ByteRange segment(std::uint32_t member, std::uint32_t column) const;
  // The length of each parity piece of the stripe.
  std::uint64_t parity_bytes(std::uint32_t stripe) const { return parity_bytes_[stripe]; }
  // How many bytes are stored at a position of a stripe: the length of the segment or parity piece there. Bytes beyond
  // this length count as zeros.
  std::uint64_t stored_bytes(std::uint32_t stripe, std::uint32_t position) const;

  // Returns the transfers that are needed to encode all parity pieces. None is empty. For parity row r, the receiver
  // multiplies the segment of column c by coefficient (r, c) and adds the products, in any order.
  std::vector<ParityTransfer> transfers(Route route) const;
  // The total length of the parity pieces that the member holds. They are stored one after the other, row by row.
  std::uint64_t parity_bytes_of(std::uint32_t member) const { return row_offset(member, parity_); }
  // The stripe whose parity row `row` the member holds.
  std::uint32_t stripe_of_row(std::uint32_t member, std::uint32_t row) const {
    return (member + members() - row) % members();
  }
  // Where the parity piece of row `row` begins in the bytes of all parity pieces that the member holds.
  std::uint64_t row_offset(std::uint32_t member, std::uint32_t row) const;

 private:
  std::vector<std::uint64_t> lengths_;
  std::uint32_t parity_;
  std::uint64_t segment_bytes_;
  std::vector<std::uint64_t> parity_bytes_;  // [stripe]
};

}  // namespace ckpt::placement
