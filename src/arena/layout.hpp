// The layout of a shard: which tensor lies where in its packed bytes. Its text is the header of a safetensors file, so
// text and packed bytes together are one (docs/arena.md). Tensors lie in falling element size, by name within one size,
// without holes; offset and element size thus always agree in alignment.
//
// Plain values and pure functions; thread-safe as such.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ckptengine/ckptengine.h"

namespace ckpt::arena {

struct LayoutEntry {
  std::string name;
  ckpt_dtype dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
};

struct Layout {
  std::vector<LayoutEntry> entries;  // by offset
  std::uint64_t length_bytes = 0;
};

// Bytes of a tensor; nothing for a negative extent or a size beyond 2^53.
std::optional<std::uint64_t> tensor_bytes(ckpt_dtype dtype, const std::vector<std::int64_t>& shape);

// Whether a tensor may be called so: 1 to 4096 bytes of UTF-8, and not safetensors' "__metadata__".
bool is_tensor_name(std::string_view name);

// Puts tensors (name, dtype and shape are given, and valid) in order and gives them their place.
Layout pack(std::vector<LayoutEntry> tensors);

std::string layout_text(const Layout& layout);
// The layout that a text describes. Throws Failure (CKPT_ERR_CORRUPT) where it is not what layout_text() writes.
Layout parse_layout(std::string_view text);
// XXH3-64 of the text.
std::uint64_t layout_hash(std::string_view text);

// A sentence that names the first tensor, by name, in which `registered` differs from `stored`; nothing if none does.
std::optional<std::string> first_difference(const Layout& stored, const Layout& registered);

}  // namespace ckpt::arena
