#include "agent/local_pieces.hpp"

#include <utility>

#include "kernels/copy_digest.hpp"

namespace ckpt::agent {

using core::SlotRef;

void LocalPieces::carry_out(const core::DropSlot& drop) {
  const auto segment = deps_.segments.find({drop.slot.rank, drop.slot.shard});
  const Pin piece = deps_.index.find(drop.slot);
  // Marks the drop first. However this agent ends, the next one does not find the piece.
  if (segment != nullptr && piece != nullptr) segment->writable_slot(drop.slot.slot).drop(piece->manifest().checkpoint);
  // The last reader may be a thread of storage that hangs and outlives this agent.
  deps_.index.drop(drop.slot, [alive = deps_.queue.weak_from_this(), this, slot = drop.slot] {
    if (const auto queue = alive.lock()) queue->post([this, slot] { deps_.core.handle(core::SlotReleased{slot}); });
  });
}

void LocalPieces::carry_out(const core::ReleaseSegment& release) {
  deps_.segments.remove({release.rank, release.shard});
}

void LocalPieces::verify(const SlotRef& slot, std::function<void()> then) {
  const Pin piece = deps_.index.find(slot);
  if (piece == nullptr || !verifying_.insert(slot).second) return then();
  auto job = [this, &queue = deps_.queue, pinned = piece, slot, then = std::move(then)]() mutable {
    const arena::Manifest& manifest = pinned->manifest();
    const auto on_disk = pinned->segment().slot(slot.slot).read();
    const bool good = on_disk == manifest && !kernels::verify_leaves(pinned->data(), manifest.length_bytes, 0,
                                                                     manifest.leaves.size(), manifest.leaves.data());
    const CheckpointId checkpoint = manifest.checkpoint;
    pinned.reset();
    queue.post([this, slot, checkpoint, good, then = std::move(then)] {
      verifying_.erase(slot);
      const Pin now = deps_.index.find(slot);
      if (!good && now != nullptr && now->manifest().checkpoint == checkpoint) {
        ++deps_.event_log.counters.corrupt;
        deps_.core.handle(core::PieceCorrupt{slot});
      }
      then();
    });
  };
  deps_.digests.submit(std::move(job));
}

void LocalPieces::verify(const core::VerifyRequest& request) {
  const Pin piece = deps_.index.find(request.shard, request.checkpoint);
  if (piece == nullptr) return;
  if (request.is_wrong && core::is_reserved(request.shard)) return deps_.core.handle(core::PieceCorrupt{piece->slot()});
  verify(piece->slot(), [] {});
}

void LocalPieces::source_damaged(const std::string& shard, CheckpointId checkpoint, core::NodeId node, bool is_wrong) {
  ++deps_.event_log.counters.corrupt;
  deps_.event_log.note("shard " + shard + " of iteration " + std::to_string(checkpoint.iteration()) +
                       (is_wrong ? " matches its digests, but was computed wrongly; it came from node "
                                 : " arrived damaged from node ") +
                       deps_.peers.name(node) + ", which checks its piece now");
  const core::VerifyRequest request{shard, checkpoint, is_wrong};
  if (node == deps_.peers.own_node()) return verify(request);
  deps_.peers.send(node, request);
}

void LocalPieces::drop_truncated() {
  for (const auto& [key, segment] : deps_.segments.take_damaged()) {
    deps_.event_log.note("somebody truncated " + segment->path() +
                         ", so its pieces are dropped; leave the arena's files alone");
    for (std::uint32_t i = 0; i < segment->slots(); ++i)
      if (const SlotRef slot{key.rank, key.shard, static_cast<std::uint8_t>(i)}; deps_.index.find(slot) != nullptr)
        deps_.core.handle(core::PieceCorrupt{slot});
  }
}

}  // namespace ckpt::agent
