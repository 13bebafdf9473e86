// Encodes and decodes the manifests that a parity piece carries in place of a layout. They are the manifests of the
// shards that the parity was computed from. A node uses them to verify a shard that it decodes with the parity.
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
  std::uint32_t rows = 0;    // how many lost members the group survives
  std::uint32_t member = 0;  // which member of the group stores this parity: an index into `members`
  std::vector<std::optional<arena::Manifest>> members;  // of each member's shard; nothing if the member has no shard
};

std::string encode(const KeptManifests& kept);
// Throws Failure (CKPT_ERR_CORRUPT) unless encode() wrote `text` for a valid group.
KeptManifests decode_kept_manifests(std::string_view text);

// Returns the parity manifest for these manifests. encoded_bytes() returns the length of the text that encode() gives
// for a group with this parity manifest.
core::ParityManifest parity_manifest_of(const KeptManifests& kept);
std::uint64_t encoded_bytes(const core::ParityManifest& parity_manifest);

}  // namespace ckpt::agent
