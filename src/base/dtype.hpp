// The element types of tensors: their sizes, and their names in safetensors. Pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>

#include "ckptengine/ckptengine.h"

namespace ckpt {

struct DtypeInfo {
  const char* name;
  std::size_t size_bytes;
};

// Indexed by ckpt_dtype.
inline constexpr std::array<DtypeInfo, 16> dtypes = {{{"BOOL", 1},
                                                      {"U8", 1},
                                                      {"I8", 1},
                                                      {"F8_E4M3", 1},
                                                      {"F8_E5M2", 1},
                                                      {"I16", 2},
                                                      {"U16", 2},
                                                      {"F16", 2},
                                                      {"BF16", 2},
                                                      {"I32", 4},
                                                      {"U32", 4},
                                                      {"F32", 4},
                                                      {"I64", 8},
                                                      {"U64", 8},
                                                      {"F64", 8},
                                                      {"C64", 8}}};

constexpr const DtypeInfo& info(ckpt_dtype dtype) { return dtypes[static_cast<std::size_t>(dtype)]; }

inline std::optional<ckpt_dtype> dtype_named(std::string_view name) {
  for (std::size_t i = 0; i < dtypes.size(); ++i)
    if (name == dtypes[i].name) return static_cast<ckpt_dtype>(i);
  return std::nullopt;
}

}  // namespace ckpt
