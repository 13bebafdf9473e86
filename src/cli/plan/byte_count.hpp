// Reads and writes numbers of bytes as people write them. Pure.
#pragma once

#include <string>
#include <string_view>

namespace ckpt::cli {

// Reads "6500000000000", "6.5e12", "6.5TB" or "16GiB". Throws std::invalid_argument with a sentence that calls the
// input `name`.
double byte_count(std::string_view name, std::string_view text);

// Returns e.g. "6.5 TB". The units are decimal, as those of rates are.
std::string decimal_bytes(double bytes);

}  // namespace ckpt::cli
