// Storage finds checkpoints on storage for the commands of ckptctl. It knows the location and the job that the user
// named.
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
  std::string location;  // as in the option `storage`
  std::string job;       // empty: no job is named
  persist::FileSystemOptions files;
};

// Only one thread may use an object of this class.
class Storage {
 public:
  // Throws Failure if the scope names no location, or if the location does not exist.
  explicit Storage(const StorageScope& scope);

  persist::FileSystem& files() { return *files_; }
  const std::string& job() const { return scope_.job; }
  // "job gpt in /mnt/checkpoints"
  std::string job_label() const { return "job " + scope_.job + " in " + files_->label(""); }

  // Names of the jobs that have checkpoints here.
  std::vector<std::string> jobs();
  // The job's checkpoints, newest first. Throws Failure (CKPT_ERR_INVALID) if the scope names no job, or if the job has
  // no checkpoint.
  std::vector<persist::StoredCheckpoint> stored_checkpoints();
  // Whether agents may still be writing `stored`. That is so if it is newer than all usable ones of the job's
  // `stored_checkpoints`, and has no manifest.json yet.
  bool may_be_coming(const std::string& job, const std::vector<persist::StoredCheckpoint>& stored_checkpoints,
                     const persist::StoredCheckpoint& stored);

 private:
  std::string other_jobs();

  const StorageScope scope_;
  const std::unique_ptr<persist::FileSystem> files_;
};

// Returns the newest usable checkpoint, an element of `stored_checkpoints`; null if none is usable.
const persist::StoredCheckpoint* newest_usable(const std::vector<persist::StoredCheckpoint>& stored_checkpoints);
// Returns the checkpoint that `word` names: an iteration, or "latest" for the newest usable one. Throws Failure
// (CKPT_ERR_INVALID) if there is no such checkpoint.
const persist::StoredCheckpoint& find_checkpoint(const Storage& storage,
                                                 const std::vector<persist::StoredCheckpoint>& stored_checkpoints,
                                                 const std::string& word);
// Like find_checkpoint(), but also throws Failure (CKPT_ERR_CORRUPT) if the checkpoint is not usable.
const persist::CheckpointRecord& find_usable_checkpoint(
    const Storage& storage, const std::vector<persist::StoredCheckpoint>& stored_checkpoints, const std::string& word);

// Finds a shard by the name that its ranks give it. The result points into `record`. Throws Failure (CKPT_ERR_INVALID)
// if the checkpoint has no such shard; the sentence names the shards that it has.
persist::ShardFile find_shard(const Storage& storage, const persist::CheckpointRecord& record, const std::string& name);

// Bytes of the tensors, without headers: of one shard, or of a whole checkpoint.
inline std::uint64_t data_bytes(const persist::ShardFile& shard) { return shard.file_bytes - shard.header_bytes; }
std::uint64_t data_bytes(const persist::CheckpointRecord& record);

// "checkpoint 7"
std::string stored_text(const persist::StoredCheckpoint& stored);
// Why the checkpoint cannot be used.
std::string problem_text(const persist::StoredCheckpoint& stored);

// Reads these shards of a checkpoint and verifies every digest. Returns a sentence for each bad piece. Throws
// StorageError if storage itself fails, so that nothing is known about the checkpoint.
std::vector<std::string> read_shards(persist::FileSystem& files, const persist::CheckpointRecord& record,
                                     const std::vector<persist::ShardFile>& shards, Progress& progress);

}  // namespace ckpt::cli
