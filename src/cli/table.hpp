// Formats plain tables for terminals. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::cli {

using Row = std::vector<std::string>;

// Formats rows as a table. The first row is the head. Each column is as wide as its widest cell, and two spaces
// separate columns. Each line begins with `indent`.
std::string table(const std::vector<Row>& rows, const std::string& indent = "");

// "1.5 GiB"
std::string human_bytes(std::uint64_t bytes);
// "12 ms", "3.4 s", "5 min"
std::string human_ms(double ms);

}  // namespace ckpt::cli
