// Where in the packed bytes of a shard a part of it lies. Pure.
#pragma once

#include "kernels/digest.hpp"
#include "placement/placement.hpp"
#include "protocol/shard_parts.hpp"

namespace ckpt::arena {

// Cut at digest leaves, so that parts have the leaves of the whole.
inline placement::ByteRange range_of(const protocol::ShardPart& part, std::uint64_t shard_bytes) {
  return placement::bytes_of({part.index, part.of}, shard_bytes, kernels::leaf_size_bytes);
}

}  // namespace ckpt::arena
