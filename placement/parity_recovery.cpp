#include "placement/parity_recovery.hpp"

#include <algorithm>
#include <set>

namespace ckpt::placement {

namespace {

std::uint64_t end_of(ByteRange range) {
  return range.size_bytes > UINT64_MAX - range.first_byte ? UINT64_MAX : range.first_byte + range.size_bytes;
}

ByteRange cut(ByteRange range, std::uint64_t first, std::uint64_t end) {
  const std::uint64_t from = std::clamp(range.first_byte, first, end);
  return {from, std::clamp(end_of(range), from, end) - from};
}

// Plans the bytes of one position of one stripe. Ranges count from the first byte of a segment or parity piece.
class StripePlanner {
 public:
  StripePlanner(const ParityLayout& layout, const LostPieces& lost, std::uint32_t stripe, std::uint32_t wanted)
      : layout_(layout), lost_(lost), stripe_(stripe), wanted_(wanted) {}

  // `origin`: where the position's first byte is in the member's shard; 0 for a parity piece.
  void plan(ByteRange within, std::uint64_t origin, DecodePlan& plan) const {
    const std::set<std::uint64_t> cuts = cuts_of(within);
    for (auto at = cuts.begin(); std::next(at) != cuts.end(); ++at) {
      const ByteRange piece{*at, *std::next(at) - *at};
      const ByteRange bytes{origin + piece.first_byte, piece.size_bytes};
      std::vector<DecodeSource> sources = sources_of(piece);
      if (sources.empty()) {
        append(plan.lost, bytes);
      } else {
        append(plan.steps, {stripe_, wanted_, bytes, std::move(sources)});
      }
    }
  }

 private:
  // Offsets at which something changes. Between two of them, the bytes of each position are all stored, all lost or all
  // zeros.
  std::set<std::uint64_t> cuts_of(ByteRange within) const {
    std::set<std::uint64_t> cuts{within.first_byte, end_of(within)};
    const auto add = [&](std::uint64_t at) {
      if (at > within.first_byte && at < end_of(within)) cuts.insert(at);
    };
    for (std::uint32_t position = 0; position < layout_.members(); ++position) {
      add(layout_.stored_bytes(stripe_, position));
      for (const ByteRange range : lost_.at(stripe_, layout_.member_at(stripe_, position))) {
        add(range.first_byte);
        add(end_of(range));
      }
    }
    return cuts;
  }

  bool is_zeros(std::uint32_t position, ByteRange piece) const {
    return piece.first_byte >= layout_.stored_bytes(stripe_, position);
  }

  bool is_there(std::uint32_t position, ByteRange piece) const {
    if (is_zeros(position, piece)) return true;
    const auto& gone = lost_.at(stripe_, layout_.member_at(stripe_, position));
    return std::none_of(gone.begin(), gone.end(), [&](ByteRange range) {
      return range.first_byte <= piece.first_byte && piece.first_byte < end_of(range);
    });
  }

  DecodeSource source(std::uint32_t position, ByteRange piece) const {
    const std::uint32_t member = layout_.member_at(stripe_, position);
    if (is_zeros(position, piece)) return {position, member, {}};
    const std::uint64_t origin = layout_.is_parity(position) ? 0 : layout_.segment(member, position).first_byte;
    return {position, member, {origin + piece.first_byte, piece.size_bytes}};
  }

  // Where to read the bytes of this position, or what to decode them from. Takes data before parity, and row 0 (plain
  // XOR) before the other rows. Returns nothing if too few positions are left.
  std::vector<DecodeSource> sources_of(ByteRange piece) const {
    if (is_there(wanted_, piece)) return {source(wanted_, piece)};
    std::vector<DecodeSource> sources;
    for (std::uint32_t position = 0; position < layout_.members() && sources.size() < layout_.columns(); ++position) {
      if (is_there(position, piece)) sources.push_back(source(position, piece));
    }
    if (sources.size() < layout_.columns()) sources.clear();
    return sources;
  }

  static void append(std::vector<ByteRange>& ranges, ByteRange next) {
    if (!ranges.empty() && end_of(ranges.back()) == next.first_byte) {
      ranges.back().size_bytes += next.size_bytes;
    } else {
      ranges.push_back(next);
    }
  }

  // Adds a step. Joins it to the one before if both have the same sources.
  static void append(std::vector<DecodeStep>& steps, DecodeStep next) {
    if (!steps.empty() && continues(steps.back(), next)) {
      steps.back().bytes.size_bytes += next.bytes.size_bytes;
      for (DecodeSource& source : steps.back().sources) {
        if (source.bytes.size_bytes > 0) source.bytes.size_bytes += next.bytes.size_bytes;
      }
    } else {
      steps.push_back(std::move(next));
    }
  }

  static bool continues(const DecodeStep& step, const DecodeStep& next) {
    return step.stripe == next.stripe && step.position == next.position &&
           std::equal(step.sources.begin(), step.sources.end(), next.sources.begin(), next.sources.end(),
                      [](const DecodeSource& a, const DecodeSource& b) {
                        return a.position == b.position && (a.bytes.size_bytes == 0) == (b.bytes.size_bytes == 0);
                      });
  }

  const ParityLayout& layout_;
  const LostPieces& lost_;
  std::uint32_t stripe_;
  std::uint32_t wanted_;
};

}  // namespace

void LostPieces::add(std::uint32_t stripe, std::uint32_t member, ByteRange within) {
  if (within.size_bytes > 0) lost_[{stripe, member}].push_back(within);
}

void LostPieces::add_parity(const ParityLayout& layout, std::uint32_t member) {
  for (std::uint32_t row = 0; row < layout.parity(); ++row) add(layout.stripe_of_row(member, row), member);
}

void LostPieces::add_shard_bytes(const ParityLayout& layout, std::uint32_t member, ByteRange bytes) {
  for (std::uint32_t column = 0; column < layout.columns(); ++column) {
    const ByteRange segment = layout.segment(member, column);
    const ByteRange part = cut(bytes, segment.first_byte, end_of(segment));
    add(layout.stripe_of(member, column), member, {part.first_byte - segment.first_byte, part.size_bytes});
  }
}

const std::vector<ByteRange>& LostPieces::at(std::uint32_t stripe, std::uint32_t member) const {
  static const std::vector<ByteRange> none;
  const auto found = lost_.find({stripe, member});
  return found == lost_.end() ? none : found->second;
}

DecodePlan plan_shard(const ParityLayout& layout, const LostPieces& lost, std::uint32_t member, ByteRange wanted) {
  DecodePlan plan;
  for (std::uint32_t column = 0; column < layout.columns(); ++column) {
    const ByteRange segment = layout.segment(member, column);
    const ByteRange part = cut(wanted, segment.first_byte, end_of(segment));
    if (part.size_bytes == 0) continue;
    StripePlanner(layout, lost, layout.stripe_of(member, column), column)
        .plan({part.first_byte - segment.first_byte, part.size_bytes}, segment.first_byte, plan);
  }
  return plan;
}

DecodePlan plan_parity(const ParityLayout& layout, const LostPieces& lost, std::uint32_t stripe, std::uint32_t row,
                       ByteRange wanted) {
  DecodePlan plan;
  const ByteRange part = cut(wanted, 0, layout.parity_bytes(stripe));
  if (part.size_bytes > 0) StripePlanner(layout, lost, stripe, layout.columns() + row).plan(part, 0, plan);
  return plan;
}

}  // namespace ckpt::placement
