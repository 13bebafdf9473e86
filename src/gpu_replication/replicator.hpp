// Replicator is the interface that sends a rank's pieces from its GPU to the other members of its replication group,
// and receives theirs (docs/gpu.md). The first failure ends it.
//
// Thread-safe. Only wait_to_meet() and the destructor wait for the GPU or for other members; both have a deadline. The
// destructor gives up what is under way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "src/gpu_replication/exchange.hpp"

namespace ckpt::device {

class Replicator {
 public:
  // Identifies the communicator in which all members meet. One member makes it.
  using Id = std::array<std::byte, 128>;
  struct Group {
    Id id{};
    std::uint32_t members = 0;
    std::uint32_t member = 0;  // this one
  };
  struct Settings {
    std::uint64_t reserved_bytes = 128u << 20;  // device memory; no exchange may need more
    std::int64_t step_timeout_ms = 10'000;      // limit without progress of an allowed step
    std::int64_t meet_timeout_ms = 60'000;      // limit for all members to meet
    std::int64_t end_timeout_ms = 10'000;       // limit for ending it, after a failure or in the destructor
    const char* const* environment = nullptr;   // as in environ(7); null for none
  };
  // Called at most once, on a thread of the replicator's or in its destructor. Then nothing reads or writes the memory
  // given to begin() any more, unless `is_stuck`. If it is stuck, that memory and the receive buffers must stay for
  // good.
  using Failed = std::function<void(const std::string& why, bool is_stuck)>;

  virtual ~Replicator() = default;

  // Returns false if the members have not met by then, or after a failure.
  virtual bool wait_to_meet(Deadline deadline) = 0;

  // One exchange: what this rank sends, where it receives, and callbacks. Callbacks must not throw, block or destroy
  // the replicator. None runs after a failure.
  struct Exchange {
    std::uint64_t number;  // the same for all members, and used once
    schedule::ExchangePlan plan;
    const std::byte* from;       // this member's piece, in pinned memory
    std::vector<std::byte*> to;  // where each member's piece goes, in the receive buffers; null: nowhere
    // Called on each progress: steps whose own chunks are in sub-buffers, and steps whose chunks from others have
    // arrived.
    std::function<void(std::uint64_t filled_steps, std::uint64_t received_steps)> progress;
    std::function<void()> done;  // it may begin the next exchange
  };
  // Returns false, and calls nothing, after a failure or if the previous exchange is not over.
  virtual bool begin(Exchange exchange) = 0;
  // Allows the steps below this one, if `number` is the exchange begun last. Call it once all members have promised to
  // issue them. It cannot be taken back.
  virtual void allow(std::uint64_t number, std::uint64_t steps) = 0;
  // Ends the exchange with the steps that are allowed so far, if `number` is the exchange begun last.
  virtual void finish(std::uint64_t number) = 0;
  // Makes it fail, as an error here would.
  virtual void give_up(const std::string& why) = 0;
};

}  // namespace ckpt::device
