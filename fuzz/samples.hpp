// Makes well-formed manifests, from which fuzz targets begin.
#pragma once

#include <string>
#include <vector>

#include "arena/layout.hpp"
#include "arena/manifest.hpp"
#include "kernels/digest.hpp"

namespace ckpt::fuzz {

// Of a whole shard: bytes that count up, with two tensors, or without a layout.
inline arena::Manifest sample_manifest(const std::string& shard, std::int64_t elements, bool has_layout = true) {
  const arena::Layout layout =
      arena::pack({{"weight", CKPT_F32, {elements, 3}, 0, 0}, {"mask \"quoted\"", CKPT_BOOL, {elements}, 0, 0}});
  std::vector<std::byte> data(layout.length_bytes);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i);
  arena::Manifest manifest;
  manifest.shard = shard;
  manifest.checkpoint = CheckpointId(1, 123);
  manifest.length_bytes = data.size();
  manifest.world_size = 2;
  manifest.layout = has_layout ? arena::layout_text(layout) : "";
  manifest.layout_hash = arena::layout_hash(manifest.layout);
  manifest.leaves.resize(kernels::leaf_count(data.size()));
  kernels::digest_leaves(data.data(), data.size(), manifest.leaves.data());
  manifest.root_digest = kernels::root_digest(manifest.leaves, data.size());
  return manifest;
}

}  // namespace ckpt::fuzz
