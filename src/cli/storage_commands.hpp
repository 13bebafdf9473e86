// The commands of ckptctl over the persistent tier. As all commands they say everything in their Result; what takes
// long also tells how far it is.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/progress.hpp"
#include "cli/storage.hpp"

namespace ckpt::cli {

// The jobs, or, where the scope names one, its checkpoints.
Result ls(const StorageScope& scope);

// The shards of a checkpoint, or the tensors of one. Checkpoints are named by iteration, or "latest".
Result inspect(const StorageScope& scope, const std::string& checkpoint, const std::string& shard);

// Reads checkpoints, or where none is named all of the job but those that are being written, to the last byte. Not good
// where anything is damaged.
Result verify(const StorageScope& scope, const std::vector<std::string>& stored_checkpoints, Progress& progress);

struct RemoveOptions {
  bool force = false;  // also what a restore would take, or what may be being written
  // Asks whoever sits there; null where nobody does, and nobody has agreed beforehand.
  std::function<bool(const std::string& question)> agree;
};
Result rm(const StorageScope& scope, const std::vector<std::string>& stored_checkpoints, const RemoveOptions& options);

struct ExportOptions {
  std::string checkpoint;
  std::string shard;   // empty: all
  std::string file;    // for torch.load
  std::string dcp;     // or a directory for torch.distributed.checkpoint
  std::string raw;     // or a directory to which the checkpoint is copied as it is
  std::string python;  // that has torch and the package ckptengine
  bool verify = true;
};
Result export_checkpoint(const StorageScope& scope, const ExportOptions& options, Progress& progress);

}  // namespace ckpt::cli
