// Storage is what ckptctl's commands use to look at checkpoints on storage. It knows the location and the job, and
// finds the checkpoint that the user names.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/progress.hpp"
#include "persist/checkpoint_catalog.hpp"
#include "persist/file_system.hpp"

namespace ckpt::cli {

struct StorageScope {
  std::string location;  // like the option `storage`
  std::string job;       // empty: no job is named
  persist::FileSystemOptions files;
};

// Only one thread may use it.
class Storage {
 public:
  // Throws Failure if no location is named or it does not exist.
  explicit Storage(const StorageScope& scope);

  persist::FileSystem& files() { return *files_; }
  const std::string& job() const { return scope_.job; }
  // "job gpt in /mnt/checkpoints"
  std::string job_label() const { return "job " + scope_.job + " in " + files_->label(""); }

  // Names of the jobs that have checkpoints here.
  std::vector<std::string> jobs();
  // The job's checkpoints, newest first. Throws Failure (CKPT_ERR_INVALID) if no job is named or it has no checkpoint.
  std::vector<persist::StoredCheckpoint> stored_checkpoints();
  // Whether somebody may be writing this checkpoint, one of the `stored_checkpoints` of `job`: it is newer than all
  // usable ones and has no manifest.
  bool may_be_coming(const std::string& job, const std::vector<persist::StoredCheckpoint>& stored_checkpoints,
                     const persist::StoredCheckpoint& stored);

 private:
  std::string other_jobs();

  const StorageScope scope_;
  const std::unique_ptr<persist::FileSystem> files_;
};

// The newest usable checkpoint; null if there is none.
const persist::StoredCheckpoint* newest_usable(const std::vector<persist::StoredCheckpoint>& stored_checkpoints);
// The checkpoint that an argument names: an iteration, or "latest" for the newest usable one. Throws Failure
// (CKPT_ERR_INVALID).
const persist::StoredCheckpoint& find_checkpoint(const Storage& storage,
                                                 const std::vector<persist::StoredCheckpoint>& stored_checkpoints,
                                                 const std::string& word);
// The same, but the checkpoint must be usable.
const persist::CheckpointRecord& find_usable_checkpoint(
    const Storage& storage, const std::vector<persist::StoredCheckpoint>& stored_checkpoints, const std::string& word);

// Finds a shard by the name that its ranks give it. The result refers to `record`. Throws Failure (CKPT_ERR_INVALID),
// which names the existing shards.
persist::ShardFile find_shard(const Storage& storage, const persist::CheckpointRecord& record, const std::string& name);

inline std::uint64_t data_bytes(const persist::ShardFile& shard) { return shard.file_bytes - shard.header_bytes; }
std::uint64_t data_bytes(const persist::CheckpointRecord& record);

// "checkpoint 7"
std::string stored_text(const persist::StoredCheckpoint& stored);
// Why the checkpoint cannot be used.
std::string problem_text(const persist::StoredCheckpoint& stored);

// Reads shards of a checkpoint and verifies every digest. Returns a sentence for each bad piece. Throws StorageError if
// storage, not the checkpoint, is the problem.
std::vector<std::string> read_shards(persist::FileSystem& files, const persist::CheckpointRecord& record,
                                     const std::vector<persist::ShardFile>& shards, Progress& progress);

}  // namespace ckpt::cli
