// Reads numbers of bytes as people write them. Pure.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::cli {

// "6500000000000", "6.5e12", "6.5TB", "16GiB". Throws std::invalid_argument, which names the input `name`.
double byte_count(std::string_view name, std::string_view text);

// "6.5 TB": with the decimal units of rates.
std::string decimal_bytes(double bytes);

}  // namespace ckpt::cli
