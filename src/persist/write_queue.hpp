// WriteQueue writes checkpoints to storage in the background, for the agent. Of each kind of request, write() and
// commit(), at most one is under way and one waits. A newer checkpoint replaces the waiting one, which then counts as
// skipped. So if storage is slow, some checkpoints are skipped, but the queue does not grow.
//
// WriteQueue has two threads. One writes this node's pieces. The other completes checkpoints and removes old ones, so
// that the pieces of the next checkpoint need not wait for this.
//
// Thread-safe. No call waits for storage except the destructor, which cancels all requests (at most 100 ms). `done` is
// called once for each request, on a thread of the queue or of the caller. It must not block or call the queue.
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
  FileSystemOptions files;             // the queue sets `stop`
  std::uint64_t bytes_per_second = 0;  // 0: no limit
  Retention retention;
};

struct WriteOutcome {
  enum class Kind { done, skipped, failed };
  Kind kind = Kind::done;
  CheckpointId checkpoint;
  ckpt_status status = CKPT_OK;
  std::string sentence;             // describes a failure; after a commit, what could not be removed
  std::vector<ShardRecord> shards;  // after write(): the pieces that storage now has
  std::uint64_t bytes = 0;          // after write(): size of these pieces
  double milliseconds = 0;          // how long the request ran
};

struct WriteCounters {
  std::uint64_t written = 0;    // successful write() requests
  std::uint64_t committed = 0;  // checkpoints that this node completed
  std::uint64_t skipped = 0;    // requests that a newer checkpoint replaced while they waited
  std::uint64_t failed = 0;     // requests that failed or were cancelled
  std::uint64_t bytes = 0;      // size of the pieces written
};

class WriteQueue {
 public:
  using Done = std::function<void(const WriteOutcome&)>;

  WriteQueue(FileSystemFactory make_files, const WriteQueueOptions& options,
             std::shared_ptr<RateLimiterClock> clock = nullptr);
  ~WriteQueue();
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  // The pieces that this node wrote of a checkpoint that will never be complete.
  struct Discarded {
    CheckpointId checkpoint;
    std::vector<std::string> shards;
  };
  // Removes `discarded`, and then writes this node's pieces of `checkpoint`. Holds the owners of the pieces until just
  // before `done`. After a failure storage may still be reading their memory. This harms no complete checkpoint.
  // Further writes fail until storage no longer uses that memory.
  void write(CheckpointId checkpoint, std::vector<Piece> pieces, Done done, Discarded discarded = {});
  // Completes the checkpoint. Call it when all nodes have written their pieces, whose names are `shards`. Then removes
  // the checkpoints that `retention` does not keep; those in `damaged` do not count as usable (prune_checkpoints()).
  void commit(CheckpointId checkpoint, std::uint32_t world_size, std::vector<std::string> shards,
              std::set<CheckpointId> damaged, Done done);
  // Cancels all requests, those under way and those that wait. They fail with CKPT_DISCARDED.
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
