// Reads and writes one record of a coordination store as a file in a directory.
//
// The file has a first line, and then the record's value. The first line serves to find damage:
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

// Reads a record from the file `name` in the directory `at`, an open descriptor. `key` is for the returned Entry.
// Returns nothing if the file does not exist. Throws Failure (CKPT_ERR_CORRUPT) if the file is damaged. `path` names
// the file in messages.
std::optional<Entry> read_record(int at, const std::string& name, const std::string& key, const std::string& path);

// Makes the file `name` in the directory `at`, writes `text` to it and syncs it. Returns the open file. `path` names
// the file in messages.
UniqueFd write_record(int at, const std::string& name, const std::string& text, const std::string& path);

}  // namespace ckpt::coord
