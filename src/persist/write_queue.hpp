// WriteQueue writes checkpoints to storage in the background, for the agent. There are two kinds of requests, write()
// and commit(). Of each kind, at most one request is under way and one waits. A request for a newer checkpoint replaces
// the waiting request, which then counts as skipped. So if storage is slow, some checkpoints are skipped, but the queue
// does not grow.
//
// WriteQueue has two threads. One writes this node's pieces. The other completes checkpoints and removes old ones. So
// the pieces of the next checkpoint need not wait for that.
//
// Thread-safe. No call waits for storage except the destructor, which cancels all requests and takes at most 100 ms.
// `done` is called once for each request, on a thread of the queue or of the caller. It must not block or call the
// queue.
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

  // A checkpoint that will never be complete, and the names of the pieces that this node wrote of it.
  struct Discarded {
    CheckpointId checkpoint;
    std::vector<std::string> shards;
  };
  // Removes `discarded`, and then writes this node's pieces of `checkpoint`. Keeps the memory of the pieces until just
  // before `done`. After a failure, storage may still be reading this memory. This harms no complete checkpoint, but
  // further writes fail until storage no longer uses the memory.
  void write(CheckpointId checkpoint, std::vector<Piece> pieces, Done done, Discarded discarded = {});
  // Completes the checkpoint. Call it when all nodes have written their pieces, whose names are `shards`. Then removes
  // checkpoints as prune_checkpoints() does, with the option `retention`. Those in `damaged` do not count as usable.
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
