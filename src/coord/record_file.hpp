// The bytes of one record in a directory, and how they get there and back.
//
// The first line holds revision, length and digest, so that a damaged file is noticed:
//   ckptengine record 1 <revision> <length in bytes> <XXH3 of value and revision, hex>
// Free functions; they throw Failure. No file is waited for: what is not a regular file, a FIFO say, is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/unique_fd.hpp"
#include "coord/store.hpp"

namespace ckpt::coord {

std::string encode_record(const std::string& value, std::uint64_t revision);

// The record in the file `name` of the directory `at`. Nothing where that file does not exist. `path` is its name in
// sentences.
std::optional<Entry> read_record(int at, const std::string& name, const std::string& key, const std::string& path);

// Makes the file and syncs it.
UniqueFd write_record(int at, const std::string& name, const std::string& text, const std::string& path);

}  // namespace ckpt::coord
