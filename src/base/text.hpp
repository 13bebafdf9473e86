// Checks names that users choose, and formats sizes for people. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt {

// True for [A-Za-z0-9._-]{1,64}, except "." and "..". Such a name can be part of a file's name.
bool is_plain_name(std::string_view text);

// The shortest text that a size option accepts for exactly this many bytes: "65537", "64KiB", "3GiB".
std::string size_text(std::uint64_t bytes);

}  // namespace ckpt
