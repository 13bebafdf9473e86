// Writes checkpoints in the background: at most one under way and one waiting. A newer checkpoint takes the place of
// the one that waits, which then counts as skipped, so that slow storage gets the newest there is and never falls
// behind.
//
// Two threads: one writes this node's shards; the other completes checkpoints and removes old ones, so that a
// checkpoint does not wait for the next one's bytes. Thread-safe; no call waits for the storage, but for the
// destructor, which calls off what is under way (at most 100 ms). `done` is called once for each request, from the
// queue's threads or the caller's: it must not block, and not call back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "persist/checkpoint_catalog.hpp"
#include "persist/checkpoint_writer.hpp"
#include "persist/file_system.hpp"
#include "persist/rate_limiter.hpp"

namespace ckpt::persist {

struct WriteQueueOptions {
  std::string job;
  std::string node;
  FileSystemOptions files;             // its stop token is the queue's own
  std::uint64_t bytes_per_second = 0;  // 0: no limit
  Retention retention;
};

struct WriteOutcome {
  enum class Kind { done, skipped, failed };
  Kind kind = Kind::done;
  CheckpointId checkpoint;
  ckpt_status status = CKPT_OK;
  std::string sentence;             // of a failure; after a commit, what could not be removed
  std::vector<ShardRecord> shards;  // of a write
  std::uint64_t bytes = 0;          // of the shards' data
  double milliseconds = 0;
};

struct WriteCounters {
  std::uint64_t written = 0;    // checkpoints, this node's part
  std::uint64_t committed = 0;  // checkpoints made whole here
  std::uint64_t skipped = 0;    // superseded while they waited
  std::uint64_t failed = 0;
  std::uint64_t bytes = 0;
};

class WriteQueue {
 public:
  using Done = std::function<void(const WriteOutcome&)>;

  WriteQueue(FileSystemFactory make_files, const WriteQueueOptions& options,
             std::shared_ptr<RateLimiterClock> clock = nullptr);
  ~WriteQueue();
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  // The pieces of `checkpoint` that this node writes. Their owners are held until just before `done`; after a failure
  // the storage may still read the memory of what it was given, to no effect on any whole checkpoint; until it lets go
  // of that, further writes fail. Before that, what this node wrote of `discarded`, which will never be whole, is
  // removed.
  struct Discarded {
    CheckpointId checkpoint;
    std::vector<std::string> shards;
  };
  void write(CheckpointId checkpoint, std::vector<Piece> pieces, Done done, Discarded discarded = {});
  // Makes the checkpoint whole when all nodes have written their shards, then removes what `retention` does not keep,
  // among which no checkpoint of `damaged` counts (prune_checkpoints).
  void commit(CheckpointId checkpoint, std::uint32_t world_size, std::vector<std::string> shards,
              std::set<CheckpointId> damaged, Done done);
  // Calls off what is under way and what waits: their outcomes are failed, with CKPT_DISCARDED.
  void cancel();

  WriteCounters counters() const;

 private:
  class Lane;
  struct Shared;
  static void lend(Shared& shared, FileSystem& files, std::vector<Piece>& pieces);
  std::shared_ptr<Shared> shared_;
  std::unique_ptr<Lane> writes_, commits_;
};

}  // namespace ckpt::persist
