// A parity group with real bytes, for tests of how parity is laid out and how lost pieces are recovered. It encodes
// parity as ParityLayout says, loses pieces, and decodes them as placement/parity_recovery.hpp plans.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

#include "kernels/coder.hpp"
#include "placement/parity_recovery.hpp"

namespace ckpt::placement {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_within(const Bytes& bytes, ByteRange range) {
  if (range.first_byte > bytes.size() || range.size_bytes > bytes.size() - range.first_byte) {
    throw std::out_of_range("a plan reads beyond what is stored");
  }
  const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(range.first_byte);
  return {first, first + static_cast<std::ptrdiff_t>(range.size_bytes)};
}

// The step reads bytes where they lie, and decodes nothing.
inline bool is_read(const DecodeStep& step) {
  return step.sources.size() == 1 && step.sources.front().position == step.position;
}

// Everything that the member holds of any stripe is lost.
inline void lose_member(LostPieces& lost, const ParityLayout& layout, std::uint32_t member) {
  for (std::uint32_t stripe = 0; stripe < layout.members(); ++stripe) lost.add(stripe, member);
}

class ParityGroup {
 public:
  ParityGroup(const std::vector<std::uint64_t>& lengths, std::uint32_t parity, std::uint64_t unit_bytes,
              std::uint64_t seed)
      : layout_(lengths, parity, unit_bytes), code_(layout_.columns(), parity) {
    std::mt19937_64 random(seed);
    for (const std::uint64_t length : lengths) {
      Bytes& shard = shards_.emplace_back(length);
      for (std::byte& byte : shard) byte = static_cast<std::byte>(random());
    }
    parity_.resize(layout_.members(), std::vector<Bytes>(parity));
    for (std::uint32_t stripe = 0; stripe < layout_.members(); ++stripe) encode(stripe);
  }

  const ParityLayout& layout() const { return layout_; }
  const std::vector<Bytes>& shards() const { return shards_; }
  Bytes& shard(std::uint32_t member) { return shards_[member]; }
  Bytes& parity(std::uint32_t stripe, std::uint32_t row) { return parity_[stripe][row]; }
  bool operator==(const ParityGroup& other) const { return shards_ == other.shards_ && parity_ == other.parity_; }

  // What is lost reads as garbage, so that nobody profits from reading it.
  void erase(std::uint32_t member) {
    std::fill(shards_[member].begin(), shards_[member].end(), std::byte{0xDB});
    for (std::uint32_t row = 0; row < layout_.parity(); ++row) {
      Bytes& piece = parity_[(member + layout_.members() - row) % layout_.members()][row];
      std::fill(piece.begin(), piece.end(), std::byte{0xDB});
    }
  }

  // The bytes at which the plan's steps arrive; those it calls lost stay zeros.
  Bytes play(const DecodePlan& plan, std::uint64_t length_bytes) const {
    Bytes result(length_bytes);
    for (const DecodeStep& step : plan.steps) {
      const Bytes made = is_read(step) ? read(step.stripe, step.sources[0]) : decode(step);
      if (made.size() != step.bytes.size_bytes) throw std::logic_error("a step makes other bytes than it says");
      std::copy(made.begin(), made.end(), result.begin() + static_cast<std::ptrdiff_t>(step.bytes.first_byte));
    }
    return result;
  }

  // Everything that the members had. Plans are all made and played before anything is put back.
  void restore(const std::vector<std::uint32_t>& members) {
    LostPieces lost;
    for (const auto member : members) lose_member(lost, layout_, member);
    std::vector<std::pair<Bytes*, Bytes>> restored;
    for (const auto member : members) {
      const std::uint64_t length = layout_.length_bytes(member);
      restored.emplace_back(&shards_[member], play_whole(plan_shard(layout_, lost, member, {0, length}), length));
      for (std::uint32_t row = 0; row < layout_.parity(); ++row) {
        const std::uint32_t stripe = (member + layout_.members() - row) % layout_.members();
        const std::uint64_t size = layout_.parity_bytes(stripe);
        restored.emplace_back(&parity_[stripe][row],
                              play_whole(plan_parity(layout_, lost, stripe, row, {0, size}), size));
      }
    }
    for (auto& [target, bytes] : restored) *target = std::move(bytes);
  }

 private:
  void encode(std::uint32_t stripe) {
    const std::uint64_t size = layout_.parity_bytes(stripe);
    std::vector<kernels::Source> sources;
    for (std::uint32_t column = 0; column < layout_.columns(); ++column) {
      const std::uint32_t member = layout_.member_at(stripe, column);
      const ByteRange bytes = layout_.segment(member, column);
      sources.push_back({shards_[member].data() + bytes.first_byte, bytes.size_bytes});
    }
    std::vector<kernels::Output> outputs;
    for (Bytes& row : parity_[stripe]) {
      row.resize(size);
      outputs.push_back({row.data(), nullptr});
    }
    kernels::Coder(code_.encoder()).combine(sources, outputs, size);
  }

  Bytes read(std::uint32_t stripe, const DecodeSource& source) const {
    const bool is_parity = layout_.is_parity(source.position);
    return bytes_within(is_parity ? parity_[stripe][source.position - layout_.columns()] : shards_[source.member],
                        source.bytes);
  }

  Bytes decode(const DecodeStep& step) const {
    std::vector<std::size_t> positions;
    std::vector<Bytes> bytes;
    std::vector<kernels::Source> sources;
    for (const DecodeSource& source : step.sources) {
      positions.push_back(source.position);
      bytes.push_back(source.bytes.size_bytes == 0 ? Bytes() : read(step.stripe, source));
    }
    for (const Bytes& source : bytes) sources.push_back({source.data(), source.size()});
    Bytes made(step.bytes.size_bytes);
    const std::vector<std::size_t> wanted{step.position};
    const std::vector<kernels::Output> outputs{{made.data(), nullptr}};
    kernels::Coder(code_.decoder(positions, wanted)).combine(sources, outputs, made.size());
    return made;
  }

  Bytes play_whole(const DecodePlan& plan, std::uint64_t length_bytes) const {
    if (!plan.lost.empty()) throw std::runtime_error("lost within the tolerance");
    return play(plan, length_bytes);
  }

  ParityLayout layout_;
  kernels::ErasureCode code_;
  std::vector<Bytes> shards_;
  std::vector<std::vector<Bytes>> parity_;  // [stripe][row]
};

}  // namespace ckpt::placement
