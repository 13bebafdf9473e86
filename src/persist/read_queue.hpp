// ReadQueue reads pieces and lists checkpoints from a CheckpointSource in the background, for the agent. It has several
// threads, each with its own CheckpointSource, and spreads a read over them.
//
// Thread-safe. No call waits for the CheckpointSource except the destructor, which cancels all requests and waits for
// the threads to end. Requests start in order, but requests to list checkpoints go first. `done` is called once for
// each request, usually on a thread of the queue. For requests that have not begun, cancel() and the destructor call
// it. If too many requests wait (`requests_max`), a new request fails at once: its `done` gets CKPT_ERR_NO_SPACE.
// `done` must not block or call the queue.
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
  std::string sentence;     // describes a failure; empty if there was none
  double milliseconds = 0;  // how long the request ran; for a read, how long its longest part ran
  bool ok() const { return status == CKPT_OK; }
};

class ReadQueue {
 public:
  struct Limits {
    unsigned threads = 2;
    std::size_t requests_max = 4096;  // most that may wait; each part of a read counts
  };
  ReadQueue(CheckpointSourceFactory make_source, const Limits& limits);
  ~ReadQueue();
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  void list(std::function<void(const ReadOutcome&, Listing)> done);
  void manifest(const std::string& shard, CheckpointId checkpoint,
                std::function<void(const ReadOutcome&, arena::Manifest)> done);
  // Reads a range of a piece into `destination`, which must stay valid until `done`. Nothing writes to it afterwards,
  // whatever the outcome. The read is divided into parts. If `stop` is requested, parts that have begun go on, and the
  // others end with CKPT_DISCARDED when their turn comes.
  void read(const std::string& shard, CheckpointId checkpoint, ByteRange range, std::byte* destination,
            std::function<void(const ReadOutcome&)> done, const std::stop_token& stop = {});
  // Cancels all requests, those under way and those that wait. Their `done` gets CKPT_DISCARDED.
  void cancel();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ckpt::persist
