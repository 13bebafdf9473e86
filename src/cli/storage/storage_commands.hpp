// The commands of ckptctl for storage. Each returns its output in a Result. Long ones also show their progress.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/progress.hpp"
#include "cli/storage/storage.hpp"

namespace ckpt::cli {

// Lists the jobs or, if the scope names a job, its checkpoints.
Result ls(const StorageScope& scope);

// Shows the shards of a checkpoint, or the tensors of one shard. A checkpoint is named by its iteration, or "latest".
Result inspect(const StorageScope& scope, const std::string& checkpoint, const std::string& shard);

// Reads checkpoints to the last byte: the named ones, or all of the job except those being written. The result is not
// good if anything is damaged.
Result verify(const StorageScope& scope, const std::vector<std::string>& stored_checkpoints, Progress& progress);

struct RemoveOptions {
  bool force = false;  // also remove what a restore would use, and what somebody may be writing
  // Asks the user; null if there is no user to ask and nobody has agreed beforehand.
  std::function<bool(const std::string& question)> agree;
};
Result rm(const StorageScope& scope, const std::vector<std::string>& stored_checkpoints, const RemoveOptions& options);

struct ExportOptions {
  std::string checkpoint;
  std::string shard;   // empty: all
  std::string file;    // for torch.load
  std::string dcp;     // or a directory for torch.distributed.checkpoint
  std::string raw;     // or a directory to which the checkpoint is copied as it is
  std::string python;  // Python that has torch and the package ckptengine
  bool verify = true;
};
Result export_checkpoint(const StorageScope& scope, const ExportOptions& options, Progress& progress);

}  // namespace ckpt::cli
