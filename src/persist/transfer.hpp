// Reads and writes whole files block by block, for the storage tier. It keeps as many blocks under way as the file
// system's options allow.
//
// Only the thread that owns the file system may use it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "persist/file_system.hpp"

namespace ckpt::persist {

struct Block {
  std::uint64_t offset = 0;
  const std::byte* data = nullptr;
  std::size_t size_bytes = 0;
  std::shared_ptr<const void> owner;
};

// Writes a new file under a temporary name, syncs it and renames it. It is durable after sync_directory(). `next`
// supplies the blocks in any order, and returns false after the last; it may throw. After a failure there is no file
// under the final name, and what was written is removed unless storage hangs.
void write_whole(FileSystem& files, const std::string& path, std::uint64_t size_bytes,
                 const std::function<bool(Block&)>& next);
void write_whole(FileSystem& files, const std::string& path, const std::string& text);

// Writes some blocks of a file that others also fill, and syncs it.
void write_some(FileSystem& files, const std::string& path, std::uint64_t file_bytes,
                const std::function<bool(Block&)>& next);

// Ignores failures.
void remove_quietly(FileSystem& files, const std::string& path);

// The first `size_bytes` of a file; fewer if it is shorter. Throws Failure (CKPT_ERR_CORRUPT) if it is longer than
// `max_bytes`.
std::string read_whole(FileSystem& files, const std::string& path, std::size_t max_bytes);
std::string read_begin(FileSystem& files, const std::string& path, std::size_t size_bytes);

// A block to read: at most block_bytes, at a multiple of direct_alignment_bytes. read_blocks() calls `next` for each
// block. It passes the blocks on in any order, in memory that is valid during the call. Throws CKPT_ERR_CORRUPT if the
// file ends early.
struct Extent {
  std::uint64_t offset = 0;
  std::size_t size_bytes = 0;
};
void read_blocks(FileSystem& files, const std::string& path, const std::function<bool(Extent&)>& next,
                 const std::function<void(const Extent&, const std::byte*)>& take);

}  // namespace ckpt::persist
