// PieceIndex finds the whole pieces on this node, for everybody who reads one: peers that fetch, trainers that restore,
// and verification.
//
// A reader pins the piece, so that the slot is not used for another piece. After drop(), find() no longer returns the
// piece, and the agent releases the slot once no reader pins the piece any more. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "arena/manifest.hpp"
#include "arena/segment.hpp"
#include "core/types.hpp"

namespace ckpt::agent {

// Describes the piece that has this manifest. Throws Failure (CKPT_ERR_CORRUPT) if it is parity whose parity manifest
// is not valid.
core::PieceInfo piece_info(const arena::Manifest& manifest);

// A piece that somebody may be reading. While the object exists, the slot keeps the bytes and the segment stays mapped.
class HeldPiece {
 public:
  HeldPiece(core::SlotRef slot, std::shared_ptr<arena::Segment> segment, arena::Manifest manifest);
  ~HeldPiece();
  HeldPiece(const HeldPiece&) = delete;
  HeldPiece& operator=(const HeldPiece&) = delete;

  const core::SlotRef& slot() const { return slot_; }
  const arena::Manifest& manifest() const { return manifest_; }
  const std::vector<std::byte>& encoded_manifest() const { return encoded_manifest_; }
  const arena::Segment& segment() const { return *segment_; }
  const std::byte* data() const { return segment_->slot(slot_.slot).data(); }

 private:
  friend class PieceIndex;

  const core::SlotRef slot_;
  const std::shared_ptr<arena::Segment> segment_;
  const arena::Manifest manifest_;
  const std::vector<std::byte> encoded_manifest_;
  std::function<void()> on_released_;  // set once, when the piece is dropped
};

using Pin = std::shared_ptr<const HeldPiece>;

class PieceIndex {
 public:
  void add(const core::SlotRef& slot, std::shared_ptr<arena::Segment> segment, arena::Manifest manifest);

  // Null if there is no such piece.
  Pin find(const std::string& shard, CheckpointId checkpoint) const;
  Pin find(const core::SlotRef& slot) const;

  // Removes the slot's piece. `on_released` runs when no reader pins the piece any more, on the last reader's thread.
  // If the slot has no piece, `on_released` runs at once.
  void drop(const core::SlotRef& slot, std::function<void()> on_released);

 private:
  mutable std::mutex mutex_;
  std::map<core::SlotRef, std::shared_ptr<HeldPiece>> pieces_;
};

}  // namespace ckpt::agent
