// Lists a job's checkpoints on storage, says which of them are complete, and removes those that need not be kept.
//
// Not thread-safe: only the thread that owns the file system may call these functions. A checkpoint that another node
// removes during a call counts as damaged.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "persist/file_system.hpp"
#include "persist/storage_format.hpp"

namespace ckpt::persist {

struct StoredCheckpoint {
  std::int64_t iteration = 0;
  std::optional<CheckpointRecord> record;  // nothing: the checkpoint's manifest.json is missing or invalid
  std::string problem;       // a sentence that says why the checkpoint cannot be used; empty: it is usable
  bool is_withheld = false;  // true: storage refused to let us read the checkpoint, so it may be complete
  // The largest incarnation in the names of the checkpoint's files or in its manifest.json; 0: none was found. Ignores
  // a file name whose incarnation is more than 65,536 above those in all manifest.json, because anybody can make such a
  // file.
  std::uint64_t newest_incarnation = 0;
  std::string remark;  // a sentence about an ignored file name; empty: none was ignored
  bool usable() const { return problem.empty(); }
  CheckpointId checkpoint() const { return record ? record->checkpoint : CheckpointId(); }
  // True if this checkpoint may be newer than `other`, as far as its file names and its manifest.json tell.
  bool may_be_newer_than(CheckpointId other) const {
    return newest_incarnation == 0 || CheckpointId(newest_incarnation, iteration) > other;
  }
};

// Lists the job's checkpoints, the newest first and those without a valid manifest.json last. Reads each manifest.json
// and the sizes of the files that it names, but not the data. So a checkpoint listed as usable may still turn out
// damaged when it is read. Returns an empty list if the job never used this storage. Throws StorageError if the storage
// is missing or cannot be read at all.
std::vector<StoredCheckpoint> list_checkpoints(FileSystem& files, const std::string& job);

struct Retention {
  std::uint32_t keep_last = 2;  // number of usable checkpoints to keep, at least one
  std::int64_t keep_every = 0;  // also keep checkpoints whose iteration is a multiple of this; 0: keep no others
};

struct Pruned {
  std::vector<std::int64_t> removed;  // iterations of the removed checkpoints
  std::vector<std::string> problems;  // a sentence for each checkpoint that could not be removed
};

// Removes three kinds of files:
//   - usable checkpoints that `retention` does not keep;
//   - checkpoints that are incomplete or damaged, and older than the newest usable one;
//   - in the checkpoints kept: files that other incarnations or broken writes left.
// Keeps the newest usable checkpoint and everything newer, everything that storage does not let us read, and everything
// that this program does not understand. Removes a checkpoint's manifest.json first, so that a checkpoint whose files
// are partly gone never looks complete. `damaged` are checkpoints that are not usable although they look so: they were
// found damaged when they were read. Throws StorageError if the storage itself fails.
Pruned prune_checkpoints(FileSystem& files, const std::string& job, const Retention& retention,
                         const std::set<CheckpointId>& damaged = {});

// Removes one checkpoint, complete or not. Throws StorageError.
void remove_checkpoint(FileSystem& files, const std::string& job, std::int64_t iteration);

}  // namespace ckpt::persist
