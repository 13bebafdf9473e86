// Manifest is all that is needed to verify and interpret the bytes of a piece. In a slot, and on the network, it comes
// before the bytes.
//
// Plain values and pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint_id.hpp"

namespace ckpt::arena {

struct Manifest {
  std::string shard;  // name of the piece: a shard or a part of one
  CheckpointId checkpoint;
  std::uint64_t length_bytes = 0;
  std::uint64_t root_digest = 0;
  std::uint32_t world_size = 0;
  std::uint64_t layout_hash = 0;
  std::string layout;                 // text of the whole shard's layout (layout.hpp); empty: the piece has none
  std::vector<std::uint64_t> leaves;  // digests of the leaves
  bool operator==(const Manifest&) const = default;
};

// True if the fields agree with each other: the number of leaves, the root digest over the leaves, and the hash of the
// layout. Also false if the checkpoint, the world size or the name is not set.
bool is_consistent(const Manifest& manifest);

// Returns the manifest capacity, in bytes, that a slot needs for data of `data_bytes` and a layout of `layout_bytes`.
std::uint64_t manifest_bytes(std::uint64_t data_bytes, std::uint64_t layout_bytes);

// Encodes a manifest for the network (docs/formats.md), and decodes it. decode_manifest() trusts nothing: it throws
// Failure (CKPT_ERR_CORRUPT) for anything but a consistent manifest.
std::vector<std::byte> encode(const Manifest& manifest);
// Returns the size of an encoded manifest in bytes. `shard_bytes` is the length of the field `shard`, not of the shard.
std::uint64_t encoded_bytes(std::uint64_t shard_bytes, std::uint64_t data_bytes, std::uint64_t layout_bytes);
Manifest decode_manifest(std::span<const std::byte> bytes);

}  // namespace ckpt::arena
