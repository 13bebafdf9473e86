// FetchDestination is the slot that one fetch fills. It checks that the manifest which arrives belongs to the piece
// that the protocol's core expects, and that the bytes match the manifest. It trusts nothing that the sender says.
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
  // What has arrived in the slot before is no longer announced.
  FetchDestination(std::shared_ptr<arena::Segment> segment, std::uint8_t slot, core::PieceInfo piece);

  const core::PieceInfo& piece() const { return piece_; }  // the piece that the core expects
  // False if somebody truncated the segment's file. Nobody may touch the slot then.
  bool is_whole_file() const { return segment_->is_whole_file(); }

  // Empties the slot for the piece with this manifest, and announces the piece to trainers that follow it
  // (arena/slot.hpp). If the manifest is malformed, belongs to another piece or does not fit, leaves the slot as it is
  // and returns false or nothing. The second function returns the decoded manifest.
  bool begin(const arena::Manifest& manifest);
  std::optional<arena::Manifest> begin(std::span<const std::byte> encoded_manifest);
  // Before begin(): how many leaves from the first one on are in the slot already, of the first `leaves` leaves of a
  // piece with this manifest. Changes nothing.
  std::size_t count_leaves_here(const arena::Manifest& manifest, std::size_t leaves);
  // Empties the slot for parity that is encoded for the first time. Its manifest can be made only when its bytes are
  // there, so only the size of the layout is known. Returns false if the piece does not fit.
  bool begin_unknown(std::uint64_t layout_bytes);

  // Between begin() and seal(): verify() returns whether the leaves from `first_leaf` up to, without, `last_leaf` match
  // their digests. Call seal() only if all leaves do.
  std::byte* data() { return slot_.data(); }
  bool verify(const arena::Manifest& manifest, std::size_t first_leaf, std::size_t last_leaf);
  void seal(const arena::Manifest& manifest);

  // Tell trainers how far the piece has come. arrived(): its first `bytes` are here and verified; `bytes` never
  // decreases. Call ring() afterwards. fail(): the piece will not become whole.
  void arrived(std::uint64_t bytes) { slot_.arrived(bytes); }
  void ring() { slot_.ring_arrival(); }
  void fail();

 private:
  std::shared_ptr<arena::Segment> segment_;
  arena::WritableSlot slot_;
  core::PieceInfo piece_;
};

}  // namespace ckpt::agent
