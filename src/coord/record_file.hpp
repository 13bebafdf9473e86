// Reads and writes the file of one record in a directory.
//
// The first line holds revision, length and digest, so that damage is noticed:
//   ckptengine record 1 <revision> <length in bytes> <XXH3 of value and revision, hex>
// Free functions; they throw Failure. They never wait for another process: anything but a regular file, such as a FIFO,
// is refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/unique_fd.hpp"
#include "coord/store.hpp"

namespace ckpt::coord {

std::string encode_record(const std::string& value, std::uint64_t revision);

// Reads the record in the file `name` of the directory `at`. Nothing if the file does not exist. `path` is its name in
// messages.
std::optional<Entry> read_record(int at, const std::string& name, const std::string& key, const std::string& path);

// Makes the file and syncs it.
UniqueFd write_record(int at, const std::string& name, const std::string& text, const std::string& path);

}  // namespace ckpt::coord
