// ParityPlace says how parity that a GPU makes lies in a place of a receive buffer: first the bytes of the parity
// piece, then its proof. The proof has, for each leaf of the piece, the digests of the leaves that the GPU added, one
// for each data column of the stripe, and the digest of the result. The agent believes a leaf only if all these digests
// are right. Here a member is a rank of the replication group, with the number that its node has in the parity group.
//
// Pure: the trainer and the agent compute the same. Throws std::invalid_argument for a group that cannot be.
#pragma once

#include <cstdint>
#include <vector>

#include "placement/parity_layout.hpp"

namespace ckpt::schedule {

// The layout of a group whose members' shards have these lengths. Shards count with whole leaves.
inline placement::ParityLayout parity_layout(std::vector<std::uint64_t> lengths_bytes, std::uint32_t rows) {
  constexpr std::uint64_t unit_bytes = placement::parity_unit_bytes;
  for (std::uint64_t& length_bytes : lengths_bytes)
    length_bytes = (length_bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
  return placement::ParityLayout(std::move(lengths_bytes), rows, unit_bytes);
}

class ParityPlace {
 public:
  // For `parity_bytes` of parity, whose stripes have `columns` data columns.
  ParityPlace(std::uint64_t parity_bytes, std::uint32_t columns) : parity_bytes_(parity_bytes), columns_(columns) {}
  ParityPlace(const placement::ParityLayout& layout, std::uint32_t member)
      : ParityPlace(layout.parity_bytes_of(member), layout.columns()) {}
  // Large enough for each member, as long as no shard of the group grows beyond these lengths.
  static ParityPlace largest(const std::vector<std::uint64_t>& lengths_bytes, std::uint32_t rows) {
    const auto layout = parity_layout(lengths_bytes, rows);
    return {rows * layout.segment_bytes(), layout.columns()};
  }

  std::uint64_t parity_bytes() const { return parity_bytes_; }
  std::uint32_t digests_per_leaf() const { return columns_ + 1; }
  // Where the digests of leaf number `leaf` begin.
  std::uint64_t digests_at(std::uint64_t leaf) const {
    return parity_bytes_ + leaf * digests_per_leaf() * sizeof(std::uint64_t);
  }
  std::uint64_t size_bytes() const { return digests_at(parity_bytes_ / placement::parity_unit_bytes); }

 private:
  std::uint64_t parity_bytes_;
  std::uint32_t columns_;
};

}  // namespace ckpt::schedule
