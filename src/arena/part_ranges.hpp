// Finds the range of a part in the packed bytes of its shard. Pure.
#pragma once

#include "kernels/digest.hpp"
#include "placement/placement.hpp"
#include "core/shard_parts.hpp"

namespace ckpt::arena {

// Parts are cut at digest leaves, so their leaves are those of the whole shard.
inline placement::ByteRange range_of(const core::ShardPart& part, std::uint64_t shard_bytes) {
  return placement::bytes_of({part.index, part.of}, shard_bytes, kernels::leaf_size_bytes);
}

}  // namespace ckpt::arena
