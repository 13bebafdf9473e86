// The persistent tier as ckptctl's commands see it: a location, a job, and the steps that a user's words name.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/progress.hpp"
#include "persist/file_system.hpp"
#include "persist/step_catalog.hpp"

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

  // Names of the jobs that have steps here.
  std::vector<std::string> jobs();
  // Of the job, newest first. Throws Failure (CKPT_ERR_INVALID) where none is named, or it has no step.
  std::vector<persist::Step> steps();
  // Whether somebody may just be writing this step, one of `steps` of `job`: newer than all that are usable, and
  // without a manifest.
  bool may_be_coming(const std::string& job, const std::vector<persist::Step>& steps, const persist::Step& step);

 private:
  std::string other_jobs();

  const StorageScope scope_;
  const std::unique_ptr<persist::FileSystem> files_;
};

// The newest that can be used; null where none can.
const persist::Step* newest_usable(const std::vector<persist::Step>& steps);
// The step that a word names: an iteration, or "latest" for the newest usable one. Throws Failure (CKPT_ERR_INVALID).
const persist::Step& find_step(const Storage& storage, const std::vector<persist::Step>& steps,
                               const std::string& word);
// The same, which must be usable.
const persist::StepRecord& find_usable_step(const Storage& storage, const std::vector<persist::Step>& steps,
                                            const std::string& word);

// A shard by the name that its ranks give it; it refers to the record. Throws Failure (CKPT_ERR_INVALID) with the names
// of those that are there.
persist::ShardFile find_shard(const Storage& storage, const persist::StepRecord& record, const std::string& name);

inline std::uint64_t data_bytes(const persist::ShardFile& shard) { return shard.file_bytes - shard.header_bytes; }
std::uint64_t data_bytes(const persist::StepRecord& record);

// "step 7"
std::string step_text(const persist::Step& step);
// Why it cannot be used.
std::string problem_text(const persist::Step& step);

// Reads shards of a step, every digest included; what is wrong with each piece, a sentence. Throws StorageError where
// the storage, not the step, is the matter.
std::vector<std::string> read_shards(persist::FileSystem& files, const persist::StepRecord& record,
                                     const std::vector<persist::ShardFile>& shards, Progress& progress);

}  // namespace ckpt::cli
