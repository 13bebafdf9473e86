// ReadQueue reads pieces and lists checkpoints from a CheckpointSource in the background, for the agent. It has several
// threads, each with a source of its own, and spreads a read over them.
//
// Thread-safe. No call waits for the source except the destructor, which cancels what is under way. Requests run in
// order, but requests to list checkpoints go first. `done` is called once for each request: on a thread of the queue,
// or by the destructor if the request had not begun. `done` must not block or call the queue. At most `requests_max`
// requests wait; any further one fails at once with CKPT_ERR_NO_SPACE.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "persist/checkpoint_source.hpp"

namespace ckpt::persist {

struct ReadOutcome {
  ckpt_status status = CKPT_OK;
  std::string sentence;  // describes a failure
  double milliseconds = 0;
  bool ok() const { return status == CKPT_OK; }
};

class ReadQueue {
 public:
  struct Limits {
    unsigned threads = 2;
    std::size_t requests_max = 4096;
  };
  ReadQueue(CheckpointSourceFactory make_source, const Limits& limits);
  ~ReadQueue();
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  void list(std::function<void(const ReadOutcome&, Listing)> done);
  void manifest(const std::string& shard, CheckpointId checkpoint,
                std::function<void(const ReadOutcome&, arena::Manifest)> done);
  // `destination` stays valid until `done`. Nothing writes to it afterwards, whatever the outcome. If `stop` is
  // requested, parts that had not begun end as CKPT_DISCARDED when their turn comes; parts that had begun go on.
  void read(const std::string& shard, CheckpointId checkpoint, ByteRange range, std::byte* destination,
            std::function<void(const ReadOutcome&)> done, const std::stop_token& stop = {});
  // Cancels what is under way and what waits: their outcomes are CKPT_DISCARDED.
  void cancel();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ckpt::persist
