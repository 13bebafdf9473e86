// Manifest is all that one needs to verify and interpret the bytes of a piece. In a slot it lies before the bytes. Over
// the network it travels before them.
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
  std::string shard;
  CheckpointId checkpoint;
  std::uint64_t length_bytes = 0;
  std::uint64_t root_digest = 0;
  std::uint32_t world_size = 0;
  std::uint64_t layout_hash = 0;
  std::string layout;                 // text
  std::vector<std::uint64_t> leaves;  // digests
  bool operator==(const Manifest&) const = default;
};

// True if the fields agree: number of leaves, root digest over the leaves, hash of the layout, a checkpoint and a world
// size.
bool is_consistent(const Manifest& manifest);

// Returns the manifest capacity that a slot needs for data of `data_bytes` and a layout text of `layout_bytes`.
std::uint64_t manifest_bytes(std::uint64_t data_bytes, std::uint64_t layout_bytes);

// Encodes a manifest for the network (docs/arena.md). decode_manifest() trusts nothing. It throws Failure
// (CKPT_ERR_CORRUPT) for anything but a consistent manifest.
std::vector<std::byte> encode(const Manifest& manifest);
// Returns the size of an encoded manifest.
std::uint64_t encoded_bytes(std::uint64_t shard_bytes, std::uint64_t data_bytes, std::uint64_t layout_bytes);
Manifest decode_manifest(std::span<const std::byte> bytes);

}  // namespace ckpt::arena
