// CheckpointWriter writes checkpoints to storage. Each node writes its pieces. Then one node writes the manifest, which
// makes the checkpoint complete. The parts of a shard go into one file, each into its range. The file gets its final
// name together with the manifest.
//
// Only the thread that owns the file system may use it. When a function returns, all that it wrote is safe even if
// storage loses power. Each function may be called again after a failure, and by several nodes at once. A file under
// its final name is always complete. A checkpoint's bytes never change once a record refers to them.
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

// A piece in memory, to be written: a shard or a part of one. `data` is not copied. It must not change while `owner` is
// held.
struct Piece {
  std::shared_ptr<const arena::Manifest> manifest;
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;
};

class CheckpointWriter {
 public:
  // Every record that this object writes names `node` as its writer.
  CheckpointWriter(FileSystem& files, std::string job, std::string node, RateLimiter& rate_limiter);

  // Writes one piece of the checkpoint piece.manifest->checkpoint, unless storage has it. Verifies every leaf before
  // writing it. Throws CKPT_ERR_CORRUPT if the memory no longer holds what was captured, or if storage holds other
  // bytes of the same checkpoint.
  ShardRecord write(const Piece& piece);

  // Removes these shards of a checkpoint that was never completed. If it has a manifest after all, it stays. What
  // cannot be removed now is left for later clean-ups.
  void discard(CheckpointId checkpoint, const std::vector<std::string>& shards);

  // Completes the checkpoint. `shards` are all pieces of the job, each already written by some node. Throws
  // CKPT_ERR_LOST if a piece is missing, and CKPT_ERR_CORRUPT if the pieces do not form whole shards. A complete
  // checkpoint of the same iteration is replaced if it is from an earlier incarnation. It stays if it is from a later
  // one (CKPT_ERR_SUPERSEDED).
  CheckpointRecord commit(CheckpointId checkpoint, std::uint32_t world_size, std::vector<std::string> shards);

 private:
  void make_checkpoint_directory(const std::string& directory);
  void write_data(const Piece& piece, const std::string& header, const ShardRecord& record, const std::string& path);
  std::optional<ShardRecord> find_written(const std::string& directory, CheckpointId checkpoint,
                                          const ShardRecord& wanted);
  ShardRecord read_record(const std::string& shard, CheckpointId checkpoint, std::uint32_t world_size);
  std::optional<CheckpointRecord> find_committed(const std::string& path, const CheckpointRecord& wanted);
  [[noreturn]] void refuse_missing(const std::string& path) const;
  void put_in_place(const std::string& directory, const ShardFile& file);

  FileSystem& files_;
  const std::string job_;
  const std::string node_;
  RateLimiter& rate_limiter_;
  std::string made_directory_;  // made by this writer, and durable
};

}  // namespace ckpt::persist
