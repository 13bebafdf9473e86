// The way of a rank's pieces from its GPU to those of the other members of a group, and of theirs here (docs/gpu.md):
// from a slot, through sub-buffers, to receive buffers. The first thing that goes wrong ends it.
//
// Thread-safe. No call waits for the GPU or for other members, but wait_to_meet() and the destructor, which gives up
// what is under way: both have a deadline.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "schedule/exchange.hpp"

namespace ckpt::device {

class Replicator {
 public:
  // Of the meeting of all members, from the one that makes it.
  using Id = std::array<std::byte, 128>;
  struct Group {
    Id id{};
    std::uint32_t members = 0;
    std::uint32_t member = 0;  // this one
  };
  struct Settings {
    std::uint64_t reserved_bytes = 128u << 20;  // of device memory: no exchange needs more
    std::int64_t step_timeout_ms = 10'000;      // without progress of a step that was allowed
    std::int64_t meet_timeout_ms = 60'000;      // until all members are there
    std::int64_t end_timeout_ms = 10'000;       // until nothing is left of it, once it fails or is to end
    const char* const* environment = nullptr;   // as in environ(7); null for none
  };
  // On a thread of the replicator's or in its destructor, once at most. Nothing reads or writes what was given to
  // begin() any more, unless `is_stuck`: then that memory, and the receive buffers, must stay for good.
  using Failed = std::function<void(const std::string& why, bool is_stuck)>;

  virtual ~Replicator() = default;

  // False where they have not met by then, or it has failed.
  virtual bool wait_to_meet(Deadline deadline) = 0;

  // All that is called neither throws nor blocks nor ends the replicator, and nothing is called once it has failed.
  struct Exchange {
    std::uint64_t number;  // the same for all members, and never again
    schedule::ExchangePlan plan;
    const std::byte* from;       // the own piece, in memory that is pinned
    std::vector<std::byte*> to;  // in the receive buffers; null: nowhere
    // Each time that there are more: steps whose own chunks are in sub-buffers, and those whose others have arrived.
    std::function<void(std::uint64_t filled_steps, std::uint64_t received_steps)> progress;
    std::function<void()> done;  // the next exchange may begin in it
  };
  // False, and nothing is called, where it has failed or the exchange before is not over.
  virtual bool begin(Exchange exchange) = 0;
  // Steps below this one of the exchange of this number, if that was begun last, are issued, once all members have said
  // that they issue them. It stays so.
  virtual void allow(std::uint64_t number, std::uint64_t steps) = 0;
  // Likewise: no more of them will be allowed.
  virtual void finish(std::uint64_t number) = 0;
  // Fails it, as what goes wrong here does.
  virtual void give_up(const std::string& why) = 0;
};

}  // namespace ckpt::device
