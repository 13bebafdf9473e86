// Reads one piece of a whole checkpoint, a shard or a part of one: any range of its bytes, each leaf verified on the
// way.
//
// Used by the thread that the file system belongs to, which must outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arena/manifest.hpp"
#include "persist/file_system.hpp"
#include "persist/storage_format.hpp"

namespace ckpt::persist {

// Of a piece's bytes.
struct ByteRange {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

class ShardReader {
 public:
  // Reads the header and the leaf digests. Throws Failure: CKPT_ERR_LOST where the checkpoint has no such shard,
  // CKPT_ERR_CORRUPT where its files are not what the record says, StorageError where they cannot be read.
  ShardReader(FileSystem& files, const CheckpointRecord& stored, const std::string& shard);

  const arena::Manifest& manifest() const { return manifest_; }

  // Puts the range's bytes to `destination`. CKPT_ERR_CORRUPT names the first leaf found damaged; after any failure the
  // destination holds anything, and nothing writes to it any more.
  void read(ByteRange range, std::byte* destination);
  // Reads all and keeps nothing.
  void verify();

 private:
  void read_leaves(ByteRange range, std::byte* destination);
  void take(std::uint64_t offset, const std::byte* data, std::size_t size_bytes, ByteRange wanted,
            std::byte* destination) const;
  [[noreturn]] void refuse_leaf(std::size_t leaf) const;

  FileSystem& files_;
  std::string data_path_;
  std::uint64_t begin_bytes_ = 0;  // of the piece in that file
  arena::Manifest manifest_;
};

}  // namespace ckpt::persist
