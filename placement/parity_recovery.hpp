// Plans how to get lost bytes back from a parity group: which ranges of which other pieces to read and to decode. It
// reads only what the missing bytes need. Bytes beyond a shard's end are zeros by definition. They need no read and
// cannot be lost.
//
// Pure functions. Bytes that do not match their digest count as lost.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "placement/parity_layout.hpp"

namespace ckpt::placement {

// The bytes that a group has lost. Each member has one position in each stripe.
class LostPieces {
 public:
  // Adds all bytes at the member's position of the stripe, or the range `within`, counted from the first byte of the
  // segment or parity piece.
  void add(std::uint32_t stripe, std::uint32_t member) { add(stripe, member, {0, UINT64_MAX}); }
  void add(std::uint32_t stripe, std::uint32_t member, ByteRange within);
  // Adds all parity that the member holds.
  void add_parity(const ParityLayout& layout, std::uint32_t member);
  // Adds bytes of the member's shard, for example a leaf that failed its digest.
  void add_shard_bytes(const ParityLayout& layout, std::uint32_t member, ByteRange bytes);

  // The lost ranges, empty if nothing is lost.
  const std::vector<ByteRange>& at(std::uint32_t stripe, std::uint32_t member) const;

 private:
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<ByteRange>> lost_;  // [stripe, member]
};

struct DecodeSource {
  std::uint32_t position = 0;  // in the stripe
  std::uint32_t member = 0;
  // A range of the member's shard for a data position, else of its parity piece. Empty: zeros.
  ByteRange bytes;
  bool operator==(const DecodeSource&) const = default;
};

// How to get some bytes at one position of a stripe. If the one source is the position itself, they are read there.
// Otherwise they are decoded from layout.columns() sources, with the coefficients that kernels/erasure_code.hpp has for
// these positions.
struct DecodeStep {
  std::uint32_t stripe = 0;
  std::uint32_t position = 0;
  ByteRange bytes;  // of the wanted shard or parity piece
  std::vector<DecodeSource> sources;
};

struct DecodePlan {
  std::vector<DecodeStep> steps;  // with `lost`, they cover exactly the wanted bytes, in order
  std::vector<ByteRange> lost;    // cannot be decoded
};

// Plans bytes of a member's shard. Cuts off what goes beyond its end.
DecodePlan plan_shard(const ParityLayout& layout, const LostPieces& lost, std::uint32_t member, ByteRange wanted);

// Plans bytes of parity row `row` of a stripe, in the same way.
DecodePlan plan_parity(const ParityLayout& layout, const LostPieces& lost, std::uint32_t stripe, std::uint32_t row,
                       ByteRange wanted);

}  // namespace ckpt::placement
