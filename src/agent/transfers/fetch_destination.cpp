#include "agent/transfers/fetch_destination.hpp"

#include <utility>

#include "agent/pieces/piece_index.hpp"
#include "base/error.hpp"
#include "kernels/copy_digest.hpp"

namespace ckpt::agent {

FetchDestination::FetchDestination(std::shared_ptr<arena::Segment> segment, std::uint8_t slot, core::PieceInfo piece)
    : segment_(std::move(segment)), slot_(segment_->writable_slot(slot)), piece_(std::move(piece)) {
  fail();
}

bool FetchDestination::begin(const arena::Manifest& manifest) {
  try {
    if (!(piece_info(manifest) == piece_) || !begin_unknown(manifest.layout.size())) return false;
    slot_.announce(manifest);
    slot_.ring_arrival();
    return true;
  } catch (const Failure&) {
    return false;
  }
}

std::optional<arena::Manifest> FetchDestination::begin(std::span<const std::byte> encoded_manifest) {
  try {
    std::optional<arena::Manifest> manifest = arena::decode_manifest(encoded_manifest);
    if (!begin(*manifest)) manifest.reset();
    return manifest;
  } catch (const Failure&) {
    return std::nullopt;
  }
}

std::size_t FetchDestination::count_leaves_here(const arena::Manifest& manifest, std::size_t leaves) {
  if (!slot_.fits(manifest.length_bytes, manifest.layout.size())) return 0;
  return kernels::verify_leaves(slot_.data(), manifest.length_bytes, 0, leaves, manifest.leaves.data())
      .value_or(leaves);
}

bool FetchDestination::begin_unknown(std::uint64_t layout_bytes) {
  if (!slot_.fits(piece_.length_bytes, layout_bytes)) return false;
  slot_.begin();
  slot_.drop(CheckpointId());  // this checkpoint may have been dropped from here before
  return true;
}

void FetchDestination::fail() {
  if (!is_whole_file()) return;
  slot_.withdraw();
  slot_.ring_arrival();
}

void FetchDestination::seal(const arena::Manifest& manifest) {
  slot_.seal(manifest);
  slot_.arrived(manifest.length_bytes);
  slot_.ring_arrival();
}

bool FetchDestination::verify(const arena::Manifest& manifest, std::size_t first_leaf, std::size_t last_leaf) {
  return !kernels::verify_leaves(slot_.data(), manifest.length_bytes, first_leaf, last_leaf, manifest.leaves.data());
}

}  // namespace ckpt::agent
