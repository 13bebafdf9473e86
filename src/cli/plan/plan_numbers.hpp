// Writes the numbers of a plan as text. Pure.
#pragma once

#include <string>

namespace ckpt::cli {

// "12.35" for 2 digits after the point
std::string rounded(double value, int digits);
// "1,234,567"
std::string grouped(double value);
// "98.62 %" for 0.9862. A tiny share gets more digits, so that it does not look like 0.
std::string percent(double share);
// "15 s", "4.2 min", "5.1 h", "3.4 days"; "never" if infinite
std::string duration(double seconds);

}  // namespace ckpt::cli
