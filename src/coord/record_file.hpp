// Reads and writes one record of a coordination store as a file in a directory.
//
// The file has a first line, which reveals damage, and then the record's value:
//    ckptengine record 1 <revision> <length of the value in bytes> <XXH3 of value and revision, hex>
// The functions throw Failure. They refuse anything but a regular file, because opening a FIFO would wait for another
// process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/unique_fd.hpp"
#include "coord/store.hpp"

namespace ckpt::coord {

std::string encode_record(const std::string& value, std::uint64_t revision);

// Reads the record `key` from the file `name` in the directory that `at` is open on. Returns nothing if the file does
// not exist. Throws CKPT_ERR_CORRUPT if it is damaged. `path` is the file's name in messages.
std::optional<Entry> read_record(int at, const std::string& name, const std::string& key, const std::string& path);

// Makes the file `name` with this text and syncs it. Returns it, open.
UniqueFd write_record(int at, const std::string& name, const std::string& text, const std::string& path);

}  // namespace ckpt::coord
