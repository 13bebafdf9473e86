// ParityLayout says which member of a parity group stores which bytes of data and of parity. Of n members, any p may be
// lost. For that, parity takes p / (n - p) extra bytes.
//
// Every member's shard counts as if zeros padded it to the longest shard's length L. The shard is cut into n - p
// segments of ceil(L / (n - p)) bytes, rounded up to whole units (digest leaves, for example). There are n stripes. A
// stripe has n positions, one on each member: its data columns 0 .. n-p-1, then its parity rows.
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
// A segment is always the same column, so it has one coefficient per row wherever it is (kernels/erasure_code.hpp uses
// these positions). A parity piece is as long as the longest segment of its stripe. Padding is not stored: the lengths
// of the shards tell it.
//
// Pure functions. A layout never changes and takes O(n) memory; threads may share it.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/placement.hpp"

namespace ckpt::placement {

inline constexpr std::uint32_t max_parity_members = 64;
inline constexpr std::uint32_t max_parity_rows = 4;
inline constexpr std::uint64_t parity_unit_bytes = 64u << 10;  // agents use one digest leaf

// How the bytes reach the members that encode parity.
enum class Route : std::uint8_t {
  direct,    // every source goes to the holders of all rows
  gathered,  // every source goes to the holder of row 0, which encodes all rows and passes the others on
  local,     // every member has all sources: nothing is sent
};

// One transfer: of a source, or of a finished parity row.
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
  // `lengths_bytes`: of each member's shard. Throws std::invalid_argument with one sentence unless 1 <= parity <= 4,
  // parity < members <= 64 and unit_bytes > 0.
  ParityLayout(std::vector<std::uint64_t> lengths_bytes, std::uint32_t parity, std::uint64_t unit_bytes);

  std::uint32_t members() const { return static_cast<std::uint32_t>(lengths_.size()); }
  std::uint32_t parity() const { return parity_; }
  std::uint32_t columns() const { return members() - parity_; }  // data segments of a stripe, and of a member
  std::uint64_t length_bytes(std::uint32_t member) const { return lengths_[member]; }
  std::uint64_t segment_bytes() const { return segment_bytes_; }

  bool is_parity(std::uint32_t position) const { return position >= columns(); }
  std::uint32_t member_at(std::uint32_t stripe, std::uint32_t position) const;
  std::uint32_t stripe_of(std::uint32_t member, std::uint32_t column) const;

  // The bytes of shard `member` of the parity group that column `column` covers. Shorter or empty where the shard ends.
  ByteRange segment(std::uint32_t member, std::uint32_t column) const;
  // The length of each parity piece of the stripe.
  std::uint64_t parity_bytes(std::uint32_t stripe) const { return parity_bytes_[stripe]; }
  // How many bytes of the segment or parity piece are stored at a position of a stripe. Zeros follow.
  std::uint64_t stored_bytes(std::uint32_t stripe, std::uint32_t position) const;

  // The transfers that encode all parity pieces. None is empty. A receiver combines the source of column c with
  // coefficient (row, c), in any order.
  std::vector<ParityTransfer> transfers(Route route) const;
  // The length of all parity pieces that the member holds. They are stored one behind the other, row by row.
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
