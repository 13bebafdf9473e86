// Writes checkpoints: each node its pieces, and one of them, when all are there, the manifest that completes the
// checkpoint. The parts of a shard that was cut come together in one file, each in its range, which gets its name with
// the manifest.
//
// Used by the thread that the file system belongs to. Functions return when what they wrote is on the medium. They may
// be repeated after a failure, and by several nodes at once: a file in place is always a whole one, and a checkpoint's
// bytes never change once a record tells of them.
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

// A whole piece in memory, a shard or a part of one. `data` is not copied; it stays as it is as long as `owner` is
// held.
struct Piece {
  std::shared_ptr<const arena::Manifest> manifest;
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;
};

class CheckpointWriter {
 public:
  // `node` goes into the records.
  CheckpointWriter(FileSystem& files, std::string job, std::string node, RateLimiter& rate_limiter);

  // Writes one piece of the checkpoint piece.manifest->checkpoint, unless it is there. Every leaf is checked before it
  // goes out: CKPT_ERR_CORRUPT where the memory no longer holds what was captured, or the storage holds other bytes of
  // the same checkpoint.
  ShardRecord write(const Piece& piece);

  // Removes these shards of a checkpoint that never became whole; one that has its manifest after all stays. What
  // cannot be removed now goes with later clean-ups.
  void discard(CheckpointId checkpoint, const std::vector<std::string>& shards);

  // Makes the checkpoint whole. `shards` are all pieces of the job; each was written, by whomever. CKPT_ERR_LOST where
  // one is not there, CKPT_ERR_CORRUPT where they do not make up whole shards. A whole checkpoint of the same iteration
  // from an earlier incarnation is replaced; one from a later incarnation stays (CKPT_ERR_SUPERSEDED).
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
  std::string made_directory_;  // by this writer, and durable
};

}  // namespace ckpt::persist
