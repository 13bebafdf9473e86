#include "placement/parity_layout.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ckpt::placement {

namespace {

std::uint64_t divide_up(std::uint64_t value, std::uint64_t by) { return value / by + (value % by != 0 ? 1 : 0); }

void check(std::size_t members, std::uint32_t parity, std::uint64_t unit_bytes) {
  if (parity < 1 || parity > max_parity_rows || members <= parity || members > max_parity_members) {
    throw std::invalid_argument("a parity group of " + std::to_string(members) + " members cannot have " +
                                std::to_string(parity) + " parity pieces per stripe: there must be 1 to " +
                                std::to_string(max_parity_rows) + " pieces, and more members than pieces, at most " +
                                std::to_string(max_parity_members));
  }
  if (unit_bytes == 0) throw std::invalid_argument("parity segments need a unit of at least 1 byte, not 0");
}

}  // namespace

ParityLayout::ParityLayout(std::vector<std::uint64_t> lengths_bytes, std::uint32_t parity, std::uint64_t unit_bytes)
    : lengths_(std::move(lengths_bytes)), parity_(parity) {
  check(lengths_.size(), parity, unit_bytes);
  const std::uint64_t longest = *std::max_element(lengths_.begin(), lengths_.end());
  segment_bytes_ = divide_up(divide_up(longest, columns()), unit_bytes) * unit_bytes;
  for (std::uint32_t stripe = 0; stripe < members(); ++stripe) {
    std::uint64_t most = 0;
    for (std::uint32_t column = 0; column < columns(); ++column) {
      most = std::max(most, segment(member_at(stripe, column), column).size_bytes);
    }
    parity_bytes_.push_back(most);
  }
}

std::uint32_t ParityLayout::member_at(std::uint32_t stripe, std::uint32_t position) const {
  return (stripe + parity_ + position) % members();
}

std::uint32_t ParityLayout::stripe_of(std::uint32_t member, std::uint32_t column) const {
  return (member + 2 * members() - parity_ - column) % members();
}

ByteRange ParityLayout::segment(std::uint32_t member, std::uint32_t column) const {
  const std::uint64_t length = lengths_[member];
  const std::uint64_t first = std::min(length, column * segment_bytes_);
  return {first, std::min(segment_bytes_, length - first)};
}

std::uint64_t ParityLayout::stored_bytes(std::uint32_t stripe, std::uint32_t position) const {
  if (is_parity(position)) return parity_bytes_[stripe];
  return segment(member_at(stripe, position), position).size_bytes;
}

std::vector<ParityTransfer> ParityLayout::transfers(Route route) const {
  std::vector<ParityTransfer> all;
  if (route == Route::local) return all;
  for (std::uint32_t stripe = 0; stripe < members(); ++stripe) {
    const std::uint32_t first_row = member_at(stripe, columns());
    for (std::uint32_t column = 0; column < columns(); ++column) {
      const std::uint32_t from = member_at(stripe, column);
      const ByteRange bytes = segment(from, column);
      if (bytes.size_bytes == 0) continue;
      for (std::uint32_t row = 0; row < (route == Route::direct ? parity_ : 1); ++row) {
        all.push_back({stripe, column, from, member_at(stripe, columns() + row), bytes});
      }
    }
    if (route == Route::direct || parity_bytes_[stripe] == 0) continue;
    for (std::uint32_t row = 1; row < parity_; ++row) {
      const std::uint32_t position = columns() + row;
      all.push_back({stripe, position, first_row, member_at(stripe, position), {0, parity_bytes_[stripe]}});
    }
  }
  return all;
}

std::uint64_t ParityLayout::row_offset(std::uint32_t member, std::uint32_t row) const {
  std::uint64_t offset = 0;
  for (std::uint32_t before = 0; before < row; ++before) offset += parity_bytes_[stripe_of_row(member, before)];
  return offset;
}

}  // namespace ckpt::placement
