// WriteQueue writes checkpoints to storage in the background, for the agent. At most one is under way and one waits. A
// newer checkpoint replaces the waiting one, which then counts as skipped. So slow storage skips checkpoints and never
// falls behind.
//
// It has two threads. One writes this node's shards. The other completes checkpoints and removes old ones, so the next
// checkpoint's bytes need not wait for that.
//
// Thread-safe. No call waits for storage except the destructor, which cancels what is under way (at most 100 ms).
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
  FileSystemOptions files;             // its stop token is the queue's own
  std::uint64_t bytes_per_second = 0;  // 0: no limit
  Retention retention;
};

struct WriteOutcome {
  enum class Kind { done, skipped, failed };
  Kind kind = Kind::done;
  CheckpointId checkpoint;
  ckpt_status status = CKPT_OK;
  std::string sentence;             // describes a failure; after a commit, what could not be removed
  std::vector<ShardRecord> shards;  // after a write
  std::uint64_t bytes = 0;          // size of the shards' data
  double milliseconds = 0;
};

struct WriteCounters {
  std::uint64_t written = 0;    // checkpoints of which this node wrote its part
  std::uint64_t committed = 0;  // checkpoints completed here
  std::uint64_t skipped = 0;    // checkpoints replaced while they waited
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

  // What this node wrote of a checkpoint that will never be complete. write() first removes it, and then writes this
  // node's pieces of `checkpoint`. It holds their owners until just before `done`. After a failure storage may still
  // read their memory, which harms no complete checkpoint. Further writes fail until storage has let go of it.
  struct Discarded {
    CheckpointId checkpoint;
    std::vector<std::string> shards;
  };
  void write(CheckpointId checkpoint, std::vector<Piece> pieces, Done done, Discarded discarded = {});
  // Completes the checkpoint when all nodes have written their shards. Then removes what `retention` does not keep;
  // checkpoints in `damaged` do not count as usable (prune_checkpoints).
  void commit(CheckpointId checkpoint, std::uint32_t world_size, std::vector<std::string> shards,
              std::set<CheckpointId> damaged, Done done);
  // Cancels what is under way and what waits: their outcomes are failures with CKPT_DISCARDED.
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
