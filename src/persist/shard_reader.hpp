// ShardReader reads any range of one piece of a complete checkpoint on storage, and verifies it leaf by leaf. The piece
// is a shard or a part of one.
//
// Only the thread that owns the file system may use a ShardReader. The file system must outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "arena/manifest.hpp"
#include "persist/file_system.hpp"
#include "persist/storage_format.hpp"

namespace ckpt::persist {

// A range of a piece's bytes.
struct ByteRange {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

class ShardReader {
 public:
  // Opens a piece: reads the header of its file and its leaf digests. `stored` is the checkpoint's record, `shard` the
  // name of the piece. Throws Failure: CKPT_ERR_LOST if the checkpoint has no such piece, CKPT_ERR_CORRUPT if the files
  // differ from the record. Throws StorageError if the files cannot be read.
  ShardReader(FileSystem& files, const CheckpointRecord& stored, const std::string& shard);

  const arena::Manifest& manifest() const { return manifest_; }

  // Reads the range into `destination`. Throws Failure (CKPT_ERR_CORRUPT), which names the first damaged leaf, or
  // StorageError. After any failure the content of `destination` is undefined, and nothing writes to it any more.
  void read(ByteRange range, std::byte* destination);
  // Reads and verifies the whole piece. Throws what read() throws.
  void verify();

 private:
  void read_leaves(ByteRange range, std::byte* destination);
  void take(std::uint64_t offset, const std::byte* data, std::size_t size_bytes, ByteRange wanted,
            std::byte* destination) const;
  [[noreturn]] void refuse_leaf(std::size_t leaf) const;

  FileSystem& files_;
  std::string data_path_;
  std::uint64_t begin_bytes_ = 0;  // where the piece begins in the file `data_path_`
  arena::Manifest manifest_;
};

}  // namespace ckpt::persist
