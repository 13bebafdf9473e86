// Reads and writes whole files block by block, for the storage tier. It keeps as many blocks under way as the file
// system's options allow.
//
// Only the thread that owns the file system may call these functions. They throw StorageError if storage fails.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "persist/file_system.hpp"

namespace ckpt::persist {

// Bytes to write at an offset of a file. `owner` keeps the memory at `data` valid. It is held until storage has read
// that memory.
struct Block {
  std::uint64_t offset = 0;
  const std::byte* data = nullptr;
  std::size_t size_bytes = 0;
  std::shared_ptr<const void> owner;
};

// Writes a new file under a temporary name, syncs it and renames it to `path`. The name is durable after
// sync_directory(). `next` supplies the blocks in any order, and returns false after the last one. It may throw. After
// a failure, `path` is as before, and the temporary file is removed unless storage hangs.
void write_whole(FileSystem& files, const std::string& path, std::uint64_t size_bytes,
                 const std::function<bool(Block&)>& next);
void write_whole(FileSystem& files, const std::string& path, const std::string& text);

// Writes blocks to a file that other nodes fill, too, and syncs the file. `next` supplies the blocks, as in
// write_whole(). `file_bytes` is the size that the file will have.
void write_some(FileSystem& files, const std::string& path, std::uint64_t file_bytes,
                const std::function<bool(Block&)>& next);

// Removes a file. Ignores failures.
void remove_quietly(FileSystem& files, const std::string& path);

// Returns all bytes of a file. Throws Failure (CKPT_ERR_CORRUPT) if the file is longer than `max_bytes`.
std::string read_whole(FileSystem& files, const std::string& path, std::size_t max_bytes);
// Returns the first `size_bytes` bytes of a file. Throws Failure (CKPT_ERR_CORRUPT) if the file is shorter.
std::string read_begin(FileSystem& files, const std::string& path, std::size_t size_bytes);

// A block to read: at most block_bytes, at a multiple of direct_alignment_bytes.
struct Extent {
  std::uint64_t offset = 0;
  std::size_t size_bytes = 0;
};
// Reads blocks of a file. `next` names the next block to read, and returns false after the last one. Passes the bytes
// of each block to `take`, in any order. They are valid only until `take` returns. Throws Failure (CKPT_ERR_CORRUPT) if
// the file ends before a block does.
void read_blocks(FileSystem& files, const std::string& path, const std::function<bool(Extent&)>& next,
                 const std::function<void(const Extent&, const std::byte*)>& take);

}  // namespace ckpt::persist
