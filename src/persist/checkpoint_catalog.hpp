// The checkpoints of a job on storage: which are there, whether each is whole, and which may go.
//
// Used by the thread that the file system belongs to. A checkpoint that somebody removes meanwhile counts as damaged.
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
  std::optional<CheckpointRecord> record;  // nothing: its manifest is missing or cannot be believed
  std::string problem;                     // why the checkpoint cannot be used, as a sentence; empty: it can
  bool is_withheld = false;                // the problem is that storage keeps it from us: it may be whole
  // The largest that a file's name or the manifest carries; 0: none was seen. Anybody can leave a name, so one that is
  // far beyond all manifests does not count.
  std::uint64_t newest_incarnation = 0;
  std::string remark;  // a sentence about such a name; empty: there is none
  bool usable() const { return problem.empty(); }
  CheckpointId checkpoint() const { return record ? record->checkpoint : CheckpointId(); }
  // Whether what lies there may be newer than that.
  bool may_be_newer_than(CheckpointId other) const {
    return newest_incarnation == 0 || CheckpointId(newest_incarnation, iteration) > other;
  }
};

// Newest first, those of unknown checkpoint last. Reads manifests and the sizes of what they name, not the data: a
// checkpoint found usable may still turn out damaged where it is read. Nothing where the job was never here. Throws
// StorageError where the storage is not there, or does not let us look at all.
std::vector<StoredCheckpoint> list_checkpoints(FileSystem& files, const std::string& job);

struct Retention {
  std::uint32_t keep_last = 2;  // usable checkpoints, at least one
  std::int64_t keep_every = 0;  // besides, every checkpoint whose iteration is a multiple; 0: none
};

struct Pruned {
  std::vector<std::int64_t> removed;  // iterations
  std::vector<std::string> problems;  // what could not be removed, and why
};

// Removes what need not be kept: usable checkpoints beyond `retention`, what is left of older ones that never became
// whole or are damaged, and, in those kept, what other incarnations and broken writes left. The newest usable
// checkpoint, everything newer, what storage keeps from us, and whatever this program does not understand stay. At
// every instant a checkpoint is whole or does not count: its manifest goes first. `damaged` are checkpoints that pass
// for usable and were found not to be, where they were read.
Pruned prune_checkpoints(FileSystem& files, const std::string& job, const Retention& retention,
                         const std::set<CheckpointId>& damaged = {});

// Removes one checkpoint, whatever its state.
void remove_checkpoint(FileSystem& files, const std::string& job, std::int64_t iteration);

}  // namespace ckpt::persist
