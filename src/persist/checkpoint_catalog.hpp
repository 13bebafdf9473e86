// Lists a job's checkpoints on storage, says which of them are complete, and removes those that need not be kept.
//
// Not thread-safe: only the thread that owns the file system may use it. If somebody removes a checkpoint during a
// call, it counts as damaged.
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
  std::optional<CheckpointRecord> record;  // nothing: its manifest is missing or invalid
  std::string problem;                     // why the checkpoint cannot be used, in a sentence; empty: it can
  bool is_withheld = false;                // the problem is that storage does not let us read it: it may be complete
  // The largest incarnation in a file's name or in the manifest; 0: none was found. Anybody can create a file name, so
  // one far above all manifests is ignored.
  std::uint64_t newest_incarnation = 0;
  std::string remark;  // a sentence about such a file name; empty: there is none
  bool usable() const { return problem.empty(); }
  CheckpointId checkpoint() const { return record ? record->checkpoint : CheckpointId(); }
  // True if the files there may belong to a newer checkpoint than `other`.
  bool may_be_newer_than(CheckpointId other) const {
    return newest_incarnation == 0 || CheckpointId(newest_incarnation, iteration) > other;
  }
};

// Lists the checkpoints, the newest first and those with an unknown id last. Reads manifests and the sizes of the files
// that they name, not the data. A checkpoint found usable may therefore turn out damaged when it is read. Empty if the
// job never used this storage. Throws StorageError if the storage is missing or cannot be read at all.
std::vector<StoredCheckpoint> list_checkpoints(FileSystem& files, const std::string& job);

struct Retention {
  std::uint32_t keep_last = 2;  // number of usable checkpoints to keep, at least one
  std::int64_t keep_every = 0;  // also keep every checkpoint whose iteration is a multiple; 0: none
};

struct Pruned {
  std::vector<std::int64_t> removed;  // iterations
  std::vector<std::string> problems;  // what could not be removed, and why
};

// Removes what need not be kept: usable checkpoints beyond `retention`; the remains of older checkpoints that never
// became complete or are damaged; and, in the checkpoints kept, files of other incarnations and of broken writes. Keeps
// the newest usable checkpoint and everything newer, everything that storage does not let us read, and everything that
// this program does not understand. At every instant a checkpoint is complete or has no manifest, since its manifest is
// removed first. `damaged` are checkpoints that look usable but were found damaged when they were read.
Pruned prune_checkpoints(FileSystem& files, const std::string& job, const Retention& retention,
                         const std::set<CheckpointId>& damaged = {});

// Removes one checkpoint, whatever its state.
void remove_checkpoint(FileSystem& files, const std::string& job, std::int64_t iteration);

}  // namespace ckpt::persist
