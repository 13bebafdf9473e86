// Writes steps: each node its shards, and one of them, when all are there, the manifest that makes the step whole.
//
// Used by the thread that the file system belongs to. Functions return when what they wrote is on the medium. They may
// be repeated after a failure, and by several nodes at once: a file in place is always a whole one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "arena/manifest.hpp"
#include "persist/file_system.hpp"
#include "persist/format.hpp"
#include "persist/pace.hpp"

namespace ckpt::persist {

// A whole shard in memory. `data` is not copied; it stays as it is as long as `owner` is held.
struct Piece {
  std::shared_ptr<const arena::Manifest> manifest;
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;
};

class StepWriter {
 public:
  // `node` goes into the records.
  StepWriter(FileSystem& files, std::string job, std::string node, Pace& pace);

  // Writes one shard of the step piece.manifest->version. Every leaf is checked before it goes out: CKPT_ERR_CORRUPT
  // where the memory no longer holds what was captured.
  ShardRecord write(const Piece& piece);

  // Makes the step whole. `shards` are all of the job's; each was written, by whomever. CKPT_ERR_LOST where one is not
  // there. A whole step of the same iteration from an earlier incarnation is replaced.
  StepRecord commit(Version version, std::uint32_t world_size, std::vector<std::string> shards);

 private:
  void make_step_directory(const std::string& directory);
  void write_data(const Piece& piece, const std::string& header, const std::string& path);
  ShardRecord read_record(const std::string& shard, Version version, std::uint32_t world_size);

  FileSystem& files_;
  const std::string job_;
  const std::string node_;
  Pace& pace_;
  std::string made_directory_;  // by this writer, and durable
};

}  // namespace ckpt::persist
