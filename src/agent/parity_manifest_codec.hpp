// What the manifest of a parity piece carries in the place of a layout: the manifests of the pieces that it was made
// of, so that whoever holds it can verify what is decoded with its help.
//
// Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arena/manifest.hpp"
#include "protocol/types.hpp"

namespace ckpt::agent {

struct KeptManifests {
  std::uint32_t rows = 0;
  std::uint32_t member = 0;
  std::vector<std::optional<arena::Manifest>> members;  // nothing where that member has no shard
};

std::string encode(const KeptManifests& kept);
// Throws Failure (CKPT_ERR_CORRUPT) for anything but what encode() writes of a group that can be.
KeptManifests decode_kept_manifests(std::string_view text);

// The parity manifest that they amount to, and how many bytes encode() takes for such.
protocol::ParityManifest parity_manifest_of(const KeptManifests& kept);
std::uint64_t encoded_bytes(const protocol::ParityManifest& parity_manifest);

}  // namespace ckpt::agent
