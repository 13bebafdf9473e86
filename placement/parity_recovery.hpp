// Plans how to get lost bytes back from a parity group: which ranges of which other pieces to read and to decode. A
// plan reads only what the lost bytes need. Bytes beyond a shard's end are zeros by definition. So nobody reads them,
// and they cannot be lost. Bytes that do not match their digest count as lost.
//
// Stripe, position, column, row, segment and member are those of parity_layout.hpp. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "placement/parity_layout.hpp"

namespace ckpt::placement {

// The bytes that a group has lost, by stripe and member. Each member has one position in each stripe.
class LostPieces {
 public:
  // Notes bytes as lost: all that the member has in this stripe, or only the range `within`. In a stripe, a member has
  // either one segment of its shard or one row of parity. Byte 0 of `within` is the first byte of that segment or row.
  void add(std::uint32_t stripe, std::uint32_t member) { add(stripe, member, {0, UINT64_MAX}); }
  void add(std::uint32_t stripe, std::uint32_t member, ByteRange within);
  // Adds all parity that the member holds.
  void add_parity(const ParityLayout& layout, std::uint32_t member);
  // Adds bytes of the member's shard, for example a leaf that failed its digest.
  void add_shard_bytes(const ParityLayout& layout, std::uint32_t member, ByteRange bytes);

  // The lost ranges of the member's segment or parity piece. Empty if nothing is lost.
  const std::vector<ByteRange>& at(std::uint32_t stripe, std::uint32_t member) const;

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<ByteRange>> lost_;  // [stripe, member]
};

// Bytes to read for a DecodeStep.
struct DecodeSource {
  std::uint32_t position = 0;  // in the stripe
  std::uint32_t member = 0;    // the member that has this position
  // At a data position: a range of the member's shard. At a parity position: a range of the parity piece. If it is
  // empty, the source is zeros, and nothing is read.
  ByteRange bytes;
  bool operator==(const DecodeSource&) const = default;
};

// How to get some bytes at one position of a stripe. If `sources` has only this position itself, the bytes are not
// lost: read them there. Otherwise decode them from these sources, of which there are layout.columns().
// ErasureCode::decoder() (kernels/erasure_code.hpp) has the coefficients for their positions.
struct DecodeStep {
  std::uint32_t stripe = 0;
  std::uint32_t position = 0;
  ByteRange bytes;  // of the wanted shard or parity piece
  std::vector<DecodeSource> sources;
};

// Each wanted byte is in one step or in `lost`.
struct DecodePlan {
  std::vector<DecodeStep> steps;  // in the order of their bytes
  std::vector<ByteRange> lost;    // wanted bytes that cannot be decoded
};

// Plans how to get the bytes `wanted` of a member's shard. Ignores the part of `wanted` beyond the shard's end.
DecodePlan plan_shard(const ParityLayout& layout, const LostPieces& lost, std::uint32_t member, ByteRange wanted);

// Plans how to get the bytes `wanted` of the parity piece in row `row` of a stripe. Ignores the part of `wanted` beyond
// the piece's end.
DecodePlan plan_parity(const ParityLayout& layout, const LostPieces& lost, std::uint32_t stripe, std::uint32_t row,
                       ByteRange wanted);

}  // namespace ckpt::placement
