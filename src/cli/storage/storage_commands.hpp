// The commands of ckptctl for storage. Each returns its output in a Result. Commands that take long also show progress.
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

// Shows the shards of a checkpoint or, if `shard` is not empty, the tensors of that shard. `checkpoint`: an iteration,
// or "latest".
Result inspect(const StorageScope& scope, const std::string& checkpoint, const std::string& shard);

// Reads the named checkpoints to the last byte. If none is named, reads all checkpoints of the job except those that
// agents may still be writing. The result is not good if anything is damaged.
Result verify(const StorageScope& scope, const std::vector<std::string>& stored_checkpoints, Progress& progress);

struct RemoveOptions {
  bool force = false;  // also remove checkpoints that a restore may need or that agents may still be writing
  // Asks the user and returns whether the user agrees. Null if there is no terminal to ask on: then rm() throws Failure
  // and removes nothing.
  std::function<bool(const std::string& question)> agree;
};
// Removes the named checkpoints, if the user agrees.
Result rm(const StorageScope& scope, const std::vector<std::string>& stored_checkpoints, const RemoveOptions& options);

struct ExportOptions {
  std::string checkpoint;  // an iteration, or "latest"
  std::string shard;       // empty: all shards
  // The target. One of these is not empty.
  std::string file;    // file for torch.load
  std::string dcp;     // directory for torch.distributed.checkpoint
  std::string raw;     // directory to which the checkpoint is copied unchanged
  std::string python;  // a Python interpreter that has torch and the package ckptengine
  bool verify = true;  // check all digests
};
Result export_checkpoint(const StorageScope& scope, const ExportOptions& options, Progress& progress);

}  // namespace ckpt::cli
