// Reads and writes one record of a coordination store as a file in a directory.
//
// The first line reveals damage:
//    ckptengine record 1 <revision> <length in bytes> <XXH3 of value and revision, hex>
// The functions throw Failure. They refuse anything but a regular file. So they never wait for another process, as they
// would on a FIFO.
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
