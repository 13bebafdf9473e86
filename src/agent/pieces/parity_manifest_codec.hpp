// Codec for the manifests that a parity piece carries in place of a layout. They are the manifests of the shards that
// the parity was computed from. A node that has the parity uses them to verify a decoded shard.
//
// Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arena/manifest.hpp"
#include "core/types.hpp"

namespace ckpt::agent {

struct KeptManifests {
  std::uint32_t rows = 0;
  std::uint32_t member = 0;
  std::vector<std::optional<arena::Manifest>> members;  // nothing if that member has no shard
};

std::string encode(const KeptManifests& kept);
// Throws Failure (CKPT_ERR_CORRUPT) unless encode() wrote `text` for a valid group.
KeptManifests decode_kept_manifests(std::string_view text);

// The parity manifest of these manifests, and the size in bytes that encode() needs for such a parity manifest.
core::ParityManifest parity_manifest_of(const KeptManifests& kept);
std::uint64_t encoded_bytes(const core::ParityManifest& parity_manifest);

}  // namespace ckpt::agent
