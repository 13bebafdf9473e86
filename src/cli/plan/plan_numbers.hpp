// Numbers of a plan as text. Pure.
#pragma once

#include <string>

namespace ckpt::cli {

std::string rounded(double value, int digits);
// "1,234,567"
std::string grouped(double value);
// "98.62 %"; with enough digits if it is small
std::string percent(double share);
// "15 s", "4.2 min", "5.1 h", "3.4 days"
std::string duration(double seconds);

}  // namespace ckpt::cli
