#include "agent/pieces/piece_index.hpp"

#include <utility>

#include "agent/pieces/parity_manifest_codec.hpp"
#include "core/parity_pieces.hpp"

namespace ckpt::agent {

core::PieceInfo piece_info(const arena::Manifest& manifest) {
  core::PieceInfo piece{manifest.shard,         manifest.checkpoint,  manifest.length_bytes,
                        manifest.layout.size(), manifest.root_digest, manifest.world_size};
  if (manifest.shard.starts_with(core::parity_prefix))
    piece.parity_manifest = parity_manifest_of(decode_kept_manifests(manifest.layout));
  return piece;
}

HeldPiece::HeldPiece(core::SlotRef slot, std::shared_ptr<arena::Segment> segment, arena::Manifest manifest)
    : slot_(std::move(slot)),
      segment_(std::move(segment)),
      manifest_(std::move(manifest)),
      encoded_manifest_(arena::encode(manifest_)) {}

HeldPiece::~HeldPiece() {
  if (on_released_) on_released_();
}

void PieceIndex::add(const core::SlotRef& slot, std::shared_ptr<arena::Segment> segment, arena::Manifest manifest) {
  auto piece = std::make_shared<HeldPiece>(slot, std::move(segment), std::move(manifest));
  const std::lock_guard lock(mutex_);
  pieces_.insert_or_assign(slot, std::move(piece));
}

Pin PieceIndex::find(const std::string& shard, CheckpointId checkpoint) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [slot, piece] : pieces_)
    if (slot.shard == shard && piece->manifest().checkpoint == checkpoint) return piece;
  return nullptr;
}

Pin PieceIndex::find(const core::SlotRef& slot) const {
  const std::lock_guard lock(mutex_);
  const auto found = pieces_.find(slot);
  return found == pieces_.end() ? nullptr : found->second;
}

void PieceIndex::drop(const core::SlotRef& slot, std::function<void()> on_released) {
  std::shared_ptr<HeldPiece> piece;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = pieces_.find(slot); found != pieces_.end()) {
      piece = std::move(found->second);
      pieces_.erase(found);
    }
  }
  if (piece == nullptr) return on_released();
  // We hold a reference. So the destructor, which reads this, has not begun.
  piece->on_released_ = std::move(on_released);
}

}  // namespace ckpt::agent
