// Base64 (RFC 4648). etcd's JSON encodes keys and values with it. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ckpt::coord {

std::string to_base64(std::string_view bytes);

// Returns nothing unless `text` is base64 with its padding.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace ckpt::coord
