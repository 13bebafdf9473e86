// Pieces for tests of the arena. Their bytes follow from the checkpoint, so a test can check them.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "arena/layout.hpp"
#include "arena/segment.hpp"
#include "kernels/copy_digest.hpp"
#include "kernels/digest.hpp"

namespace ckpt::arena {

inline Layout piece_layout(std::uint64_t bytes) {
  return pack({{"bytes", CKPT_U8, {static_cast<std::int64_t>(bytes)}, 0, 0}});
}

inline std::vector<std::byte> piece_bytes(CheckpointId checkpoint, std::uint64_t bytes) {
  std::vector<std::byte> data(bytes);
  std::uint64_t state = checkpoint.word() * 0x9e3779b97f4a7c15ull + 1;
  for (std::byte& byte : data) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    byte = static_cast<std::byte>(state >> 56);
  }
  return data;
}

inline Manifest piece_manifest(const std::string& shard, CheckpointId checkpoint, std::uint64_t bytes) {
  const auto data = piece_bytes(checkpoint, bytes);
  Manifest manifest;
  manifest.shard = shard;
  manifest.checkpoint = checkpoint;
  manifest.length_bytes = bytes;
  manifest.world_size = 4;
  manifest.layout = layout_text(piece_layout(bytes));
  manifest.layout_hash = layout_hash(manifest.layout);
  manifest.leaves.resize(kernels::leaf_count(bytes));
  kernels::digest_leaves(data.data(), bytes, manifest.leaves.data());
  manifest.root_digest = kernels::root_digest(manifest.leaves, bytes);
  return manifest;
}

// As an agent stores what arrived over the network.
inline void store_piece(WritableSlot slot, const std::string& shard, CheckpointId checkpoint, std::uint64_t bytes) {
  const auto data = piece_bytes(checkpoint, bytes);
  slot.begin();
  std::copy(data.begin(), data.end(), slot.data());
  slot.seal(piece_manifest(shard, checkpoint, bytes));
}

// Whether the slot's bytes are what the manifest says, and what its checkpoint says.
inline bool piece_is_whole(const Slot& slot, const Manifest& manifest) {
  if (kernels::verify_leaves(slot.data(), manifest.length_bytes, 0, manifest.leaves.size(), manifest.leaves.data()))
    return false;
  const auto expected = piece_bytes(manifest.checkpoint, manifest.length_bytes);
  return std::equal(expected.begin(), expected.end(), slot.data());
}

}  // namespace ckpt::arena
