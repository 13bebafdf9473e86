// FetchDestination is the slot that one fetch fills. It checks that the bytes which arrive are the piece that the
// protocol's core expects, and seals the slot only then. It believes nothing that the sender says.
//
// One thread at a time calls begin() and seal(). Between these calls, several threads may write and verify different
// leaves. The object keeps the segment mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "arena/segment.hpp"
#include "core/types.hpp"

namespace ckpt::agent {

class FetchDestination {
 public:
  FetchDestination(std::shared_ptr<arena::Segment> segment, std::uint8_t slot, core::PieceInfo piece);

  const core::PieceInfo& piece() const { return piece_; }  // the expected one
  // False if somebody truncated the segment's file. Nobody may touch the slot then.
  bool is_whole_file() const { return segment_->is_whole_file(); }

  // Empties the slot for the piece with this manifest. Returns nothing, and touches nothing, if the manifest is
  // malformed, belongs to another piece, or does not fit.
  bool begin(const arena::Manifest& manifest);
  std::optional<arena::Manifest> begin(std::span<const std::byte> encoded_manifest);
  // The same for parity that is encoded for the first time: its manifest is not known before its bytes.
  bool begin_unknown(std::uint64_t layout_bytes);

  // Between begin() and seal().
  std::byte* data() { return slot_.data(); }
  bool verify(const arena::Manifest& manifest, std::size_t first_leaf, std::size_t last_leaf);
  void seal(const arena::Manifest& manifest) { slot_.seal(manifest); }

 private:
  std::shared_ptr<arena::Segment> segment_;
  arena::WritableSlot slot_;
  core::PieceInfo piece_;
};

}  // namespace ckpt::agent
