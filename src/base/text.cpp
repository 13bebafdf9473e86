#include "base/text.hpp"

#include <algorithm>
#include <array>

namespace ckpt {

bool is_plain_name(std::string_view text) {
  constexpr std::string_view letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !text.empty() && text.size() <= 64 && text != "." && text != ".." &&
         text.find_first_not_of(letters) == std::string_view::npos;
}

std::string size_text(std::uint64_t bytes) {
  constexpr std::array units = {"", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < units.size()) bytes /= 1024, ++unit;
  return std::to_string(bytes) + units[unit];
}

}  // namespace ckpt
