#include "cli/plan/plan_numbers.hpp"

#include <array>
#include <cmath>
#include <cstdio>

namespace ckpt::cli {

std::string rounded(double value, int digits) {
  std::array<char, 400> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string grouped(double value) {
  std::string text = rounded(value, 0);
  for (std::size_t at = text.size(); at > (text[0] == '-' ? 4u : 3u);) text.insert(at -= 3, ",");
  return text;
}

std::string percent(double share) {
  if (share != 0 && std::abs(share) < 1e-4) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "%.2g %%", 100 * share);
    return text.data();
  }
  return rounded(100 * share, 2) + " %";
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds)) return "never";
  if (seconds < 1) return rounded(1000 * seconds, seconds < 0.01 ? 1 : 0) + " ms";
  if (seconds < 120) return rounded(seconds, seconds < 10 ? 1 : 0) + " s";
  if (seconds < 2 * 3600) return rounded(seconds / 60, 1) + " min";
  if (seconds < 48 * 3600) return rounded(seconds / 3600, 1) + " h";
  return rounded(seconds / 86'400, seconds < 86'400 * 100 ? 1 : 0) + " days";
}

}  // namespace ckpt::cli
