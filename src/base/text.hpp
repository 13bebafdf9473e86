// Names that users choose, and sizes as they write them. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt {

// [A-Za-z0-9._-]{1,64}, and neither "." nor "..": fit to name files and shards.
bool is_plain_name(std::string_view text);

// The shortest text that the size options take for exactly so many bytes: "65537", "64KiB", "3GiB".
std::string size_text(std::uint64_t bytes);

}  // namespace ckpt
