// Layout says where each tensor lies in the bytes of a shard. The tensors lie without gaps, sorted by element size, the
// largest first, and then by name. So each tensor is aligned to its element size. As text, a layout is the header of a
// safetensors file, and the shard's bytes are that file's data (docs/formats.md).
//
// Plain values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckptengine/ckptengine.h"
#include "core/shard_parts.hpp"
#include "kernels/digest.hpp"
#include "placement/placement.hpp"

namespace ckpt::arena {

struct LayoutEntry {
  std::string name;
  ckpt_dtype dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

struct Layout {
  std::vector<LayoutEntry> entries;  // sorted by offset
  std::uint64_t length_bytes = 0;
};

// Returns the size of a tensor in bytes, or nothing for a negative extent or a size beyond 2^53.
std::optional<std::uint64_t> tensor_bytes(ckpt_dtype dtype, const std::vector<std::int64_t>& shape);

// True for a valid tensor name: 1 to 4096 bytes of UTF-8, and not safetensors' "__metadata__".
bool is_tensor_name(std::string_view name);

// Sorts tensors and sets their offsets and sizes. Their names, dtypes and shapes must be set and valid.
Layout pack(std::vector<LayoutEntry> tensors);

std::string layout_text(const Layout& layout);
// Parses a layout text. Throws Failure (CKPT_ERR_CORRUPT) for anything that layout_text() would not write.
Layout parse_layout(std::string_view text);
// XXH3-64 of the text.
std::uint64_t layout_hash(std::string_view text);

// Returns a sentence about the first tensor, by name, that differs between the two layouts, or nothing if none differs.
std::optional<std::string> first_difference(const Layout& stored, const Layout& registered);

// Returns the byte range of a part in its shard, which has `shard_bytes` bytes. Parts begin and end where leaves do. So
// each leaf of the shard is a leaf of one part.
inline placement::ByteRange range_of(const core::ShardPart& part, std::uint64_t shard_bytes) {
  return placement::bytes_of({part.index, part.of}, shard_bytes, kernels::leaf_size_bytes);
}

}  // namespace ckpt::arena
