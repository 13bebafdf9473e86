// Getting bytes back from a parity group: which ranges of which survivors to read and decode, and nothing more than the
// missing bytes need. What is beyond a shard's end is known to be zeros, needs no read and cannot be lost.
//
// Pure. Bytes that failed their digest are lost like erased ones.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "placement/parity_layout.hpp"

namespace ckpt::placement {

// What is not to be had of a group. Each member has one position in each stripe.
class LostPieces {
 public:
  // All bytes at the member's position of the stripe, or some of them, counted from the segment's or piece's first.
  void add(std::uint32_t stripe, std::uint32_t member) { add(stripe, member, {0, UINT64_MAX}); }
  void add(std::uint32_t stripe, std::uint32_t member, ByteRange within);
  // All that the member holds of parity.
  void add_parity(const ParityLayout& layout, std::uint32_t member);
  // Bytes of the member's shard, such as a leaf that failed its digest.
  void add_shard_bytes(const ParityLayout& layout, std::uint32_t member, ByteRange bytes);

  // Empty where nothing is lost.
  const std::vector<ByteRange>& at(std::uint32_t stripe, std::uint32_t member) const;

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<ByteRange>> lost_;  // [stripe, member]
};

struct DecodeSource {
  std::uint32_t position = 0;  // in the stripe
  std::uint32_t member = 0;
  // Of the member's shard for a data position, else of its parity piece. None: zeros.
  ByteRange bytes;
  bool operator==(const DecodeSource&) const = default;
};

// Bytes at one position of a stripe: read where they are (the one source is the position itself), or decoded from
// layout.columns() sources, with the coefficients that kernels/erasure_code.hpp gives for these positions.
struct DecodeStep {
  std::uint32_t stripe = 0;
  std::uint32_t position = 0;
  ByteRange bytes;  // of the wanted shard or parity piece
  std::vector<DecodeSource> sources;
};

struct DecodePlan {
  std::vector<DecodeStep> steps;  // together with `lost` exactly what is wanted, in order
  std::vector<ByteRange> lost;    // beyond the tolerance
};

// Bytes of a member's shard. What goes beyond its end is cut off.
DecodePlan plan_shard(const ParityLayout& layout, const LostPieces& lost, std::uint32_t member, ByteRange wanted);

// Bytes of parity row `row` of a stripe, likewise.
DecodePlan plan_parity(const ParityLayout& layout, const LostPieces& lost, std::uint32_t stripe, std::uint32_t row,
                       ByteRange wanted);

}  // namespace ckpt::placement
