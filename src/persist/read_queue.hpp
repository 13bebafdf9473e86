// Reads from a source in the background, on several threads, each with a source of its own.
//
// Thread-safe; no call waits for the source, but for the destructor, which calls off what is under way. Requests are
// served in order, a list before everything that is not one; a read is spread over the threads. `done` is called once
// for each request, from one of the queue's threads (the destructor's for those that were not begun): it must not
// block, and not call back. At most `requests_max` wait; beyond, a request fails at once with CKPT_ERR_NO_SPACE.
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
  std::string sentence;  // of a failure
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
  // `destination` stays valid until `done`; nothing writes to it afterwards, whatever the outcome. Parts that were not
  // begun when `stop` is requested end as CKPT_DISCARDED when their turn comes; those that were go on.
  void read(const std::string& shard, CheckpointId checkpoint, ByteRange range, std::byte* destination,
            std::function<void(const ReadOutcome&)> done, const std::stop_token& stop = {});
  // Calls off what is under way and what waits: their outcomes are CKPT_DISCARDED.
  void cancel();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ckpt::persist
