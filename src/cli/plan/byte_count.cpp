#include "cli/plan/byte_count.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <utility>

namespace ckpt::cli {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 13> byte_units = {{
    {"", 1},
    {"B", 1},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
    {"PB", 1e15},
    {"KiB", 1024.0},
    {"MiB", 1024.0 * 1024},
    {"GiB", 1024.0 * 1024 * 1024},
    {"TiB", 1024.0 * 1024 * 1024 * 1024},
    {"PiB", 1024.0 * 1024 * 1024 * 1024 * 1024},
    {"kB", 1e3},
}};

}  // namespace

double byte_count(std::string_view name, std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  for (const auto& [known, bytes] : byte_units)
    if (error == std::errc() && std::isfinite(value) && unit == known) return value * bytes;
  throw std::invalid_argument(std::string(name) + " must be a number of bytes, plain or as in 6.5TB or 16GiB, not '" +
                              std::string(text) + "'");
}

std::string decimal_bytes(double bytes) {
  std::string_view unit = "B";
  double size = 1;
  for (const auto& [name, unit_bytes] : byte_units)
    if (name.size() == 2 && name[0] != 'k' && bytes >= unit_bytes) unit = name, size = unit_bytes;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.3g %.*s", bytes / size, static_cast<int>(unit.size()), unit.data());
  return text.data();
}

}  // namespace ckpt::cli
