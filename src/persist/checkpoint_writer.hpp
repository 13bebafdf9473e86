// CheckpointWriter writes checkpoints to storage. Each node writes its pieces. Then one node writes manifest.json,
// which makes the checkpoint complete. The parts of a shard go into one file, each part into its range of the file. The
// file gets its final name just before manifest.json is written.
//
// Only the thread that owns the file system may use a CheckpointWriter. When a function returns, everything that it
// wrote survives a power failure of the storage. Each function may be called again after a failure, and by several
// nodes at once. A file under its final name is always complete. Once a record of the checkpoint refers to bytes, these
// bytes never change.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arena/manifest.hpp"
#include "persist/file_system.hpp"
#include "persist/rate_limiter.hpp"
#include "persist/storage_format.hpp"

namespace ckpt::persist {

// A piece in memory that is to be written: a shard or a part of one. `data` is not copied. It must stay valid and
// unchanged while a copy of `owner` exists.
struct Piece {
  std::shared_ptr<const arena::Manifest> manifest;
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;
};

class CheckpointWriter {
 public:
  // Every record that this object writes names `node` as its writer.
  CheckpointWriter(FileSystem& files, std::string job, std::string node, RateLimiter& rate_limiter);

  // Writes one piece of the checkpoint piece.manifest->checkpoint, unless storage has this piece already. Verifies
  // every leaf before writing it. Returns the piece's record. Throws CKPT_ERR_CORRUPT if the memory no longer holds
  // what was captured, or if storage has the same piece of the same checkpoint with other bytes.
  ShardRecord write(const Piece& piece);

  // Removes the pieces `shards` of a checkpoint that will not be completed. Does nothing if the checkpoint has a
  // manifest.json after all. Files that cannot be removed now are left for prune_checkpoints().
  void discard(CheckpointId checkpoint, const std::vector<std::string>& shards);

  // Completes the checkpoint by writing manifest.json. `shards` names all pieces of the checkpoint, each already
  // written by some node. Throws CKPT_ERR_LOST if a piece is missing, and CKPT_ERR_CORRUPT if the pieces do not form
  // whole shards. Replaces a complete checkpoint of the same iteration from an earlier incarnation. Throws
  // CKPT_ERR_SUPERSEDED if there is one from a later incarnation.
  CheckpointRecord commit(CheckpointId checkpoint, std::uint32_t world_size, std::vector<std::string> shards);

 private:
  void make_checkpoint_directory(const std::string& directory);
  void write_data(const Piece& piece, const std::string& header, const ShardRecord& record, const std::string& path);
  std::optional<ShardRecord> find_written(const std::string& directory, CheckpointId checkpoint,
                                          const ShardRecord& wanted);
  ShardRecord read_record(const std::string& shard, CheckpointId checkpoint, std::uint32_t world_size);
  std::optional<CheckpointRecord> find_committed(const std::string& path, const CheckpointRecord& wanted);
  // `size_bytes`: the size that the file must have, if it is known.
  [[noreturn]] void refuse_missing(const std::string& path, std::optional<std::uint64_t> size_bytes = {}) const;
  void put_in_place(const std::string& directory, const ShardFile& file);

  FileSystem& files_;
  const std::string job_;
  const std::string node_;
  RateLimiter& rate_limiter_;
  std::string made_directory_;  // the directory of a checkpoint that this object made, and made durable, last
};

}  // namespace ckpt::persist
