// The persistent tier as ckptctl's commands see it: a location, a job, and the checkpoints that a user's words name.
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
  std::string location;  // as the option `storage`
  std::string job;       // empty: none is named
  persist::FileSystemOptions files;
};

// Of one thread.
class Storage {
 public:
  // Throws Failure where no location is named, or it is not there.
  explicit Storage(const StorageScope& scope);

  persist::FileSystem& files() { return *files_; }
  const std::string& job() const { return scope_.job; }
  // "job gpt in /mnt/checkpoints"
  std::string job_label() const { return "job " + scope_.job + " in " + files_->label(""); }

  // Names of the jobs that have checkpoints here.
  std::vector<std::string> jobs();
  // Of the job, newest first. Throws Failure (CKPT_ERR_INVALID) where none is named, or it has no checkpoint.
  std::vector<persist::StoredCheckpoint> stored_checkpoints();
  // Whether somebody may just be writing this checkpoint, one of `checkpoints` of `job`: newer than all that are
  // usable, and without a manifest.
  bool may_be_coming(const std::string& job, const std::vector<persist::StoredCheckpoint>& stored_checkpoints,
                     const persist::StoredCheckpoint& stored);

 private:
  std::string other_jobs();

  const StorageScope scope_;
  const std::unique_ptr<persist::FileSystem> files_;
};

// The newest that can be used; null where none can.
const persist::StoredCheckpoint* newest_usable(const std::vector<persist::StoredCheckpoint>& stored_checkpoints);
// The checkpoint that a word names: an iteration, or "latest" for the newest usable one. Throws Failure
// (CKPT_ERR_INVALID).
const persist::StoredCheckpoint& find_checkpoint(const Storage& storage,
                                                 const std::vector<persist::StoredCheckpoint>& stored_checkpoints,
                                                 const std::string& word);
// The same, which must be usable.
const persist::CheckpointRecord& find_usable_checkpoint(
    const Storage& storage, const std::vector<persist::StoredCheckpoint>& stored_checkpoints, const std::string& word);

// A shard by the name that its ranks give it; it refers to the record. Throws Failure (CKPT_ERR_INVALID) with the names
// of those that are there.
persist::ShardFile find_shard(const Storage& storage, const persist::CheckpointRecord& record, const std::string& name);

inline std::uint64_t data_bytes(const persist::ShardFile& shard) { return shard.file_bytes - shard.header_bytes; }
std::uint64_t data_bytes(const persist::CheckpointRecord& record);

// "checkpoint 7"
std::string stored_text(const persist::StoredCheckpoint& stored);
// Why it cannot be used.
std::string problem_text(const persist::StoredCheckpoint& stored);

// Reads shards of a checkpoint, every digest included; what is wrong with each piece, a sentence. Throws StorageError
// where the storage, not the checkpoint, is the matter.
std::vector<std::string> read_shards(persist::FileSystem& files, const persist::CheckpointRecord& record,
                                     const std::vector<persist::ShardFile>& shards, Progress& progress);

}  // namespace ckpt::cli
