// Replicator is the interface that sends a rank's pieces from its GPU to the other members of its replication group,
// and receives theirs (docs/gpu.md). The first failure ends the replicator.
//
// Thread-safe. Only wait_to_meet() and the destructor wait for the GPU or for other members; both have a deadline. The
// destructor gives up an exchange that is under way.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "src/gpu_replication/exchange.hpp"

namespace ckpt::device {

class Replicator {
 public:
  // Identifies the NCCL communicator that all members join. One member makes it.
  using Id = std::array<std::byte, 128>;
  struct Group {
    Id id{};
    std::uint32_t members = 0;
    std::uint32_t member = 0;   // number of this one
    bool makes_parity = false;  // members make parity of their pieces, and do not keep copies (exchange.hpp)
  };
  struct Settings {
    std::uint64_t reserved_bytes = 128u << 20;  // device memory; no exchange may need more
    std::int64_t step_timeout_ms = 10'000;      // how long an allowed step may make no progress
    std::int64_t meet_timeout_ms = 60'000;      // how long the members may take to connect to each other
    std::int64_t end_timeout_ms = 10'000;       // how long a failure or the destructor waits until NCCL has ended
    const char* const* environment = nullptr;   // as in environ(7); null: empty
  };
  // Reports the failure. Called at most once, on a thread of the replicator or in its destructor. From then on nothing
  // reads or writes the memory given to begin(), unless `is_stuck`. `is_stuck`: the GPU or NCCL did not stop in time
  // and may still access that memory and the receive buffers, so both must stay for good.
  using Failed = std::function<void(const std::string& why, bool is_stuck)>;

  virtual ~Replicator() = default;

  // Waits until all members have met: each one is connected to all others over NCCL. Returns false if they have not met
  // by the deadline, or after a failure.
  virtual bool wait_to_meet(Deadline deadline) = 0;

  // A piece that this rank sends. `data` is where it is or will be in pinned memory. `capture` is its number
  // (Device::capture_number()), and `state` how far it is. The bytes come from the GPU while it has them, otherwise
  // from `data` once the piece is complete.
  enum class PieceState { capturing, complete, discarded };
  struct Piece {
    const std::byte* data = nullptr;
    std::uint64_t capture = 0;
    std::shared_ptr<const std::atomic<PieceState>> state;
  };

  // One exchange: what this rank sends, where it receives, and callbacks. Callbacks must not throw, block or destroy
  // the replicator. None runs after a failure.
  struct Exchange {
    std::uint64_t number;  // the same on all members, and different for each exchange
    schedule::ExchangePlan plan;
    Piece from;  // this member's piece
    // Where each member's piece goes, in the receive buffers; null: nowhere. With parity, only where this member's
    // parity goes counts.
    std::vector<std::byte*> to;
    // Called on each progress. `filled_steps`: number of steps for which this member's chunk is in a sub-buffer on the
    // GPU. `received_steps`: number of steps for which all other members' chunks have arrived.
    std::function<void(std::uint64_t filled_steps, std::uint64_t received_steps)> progress;
    std::function<void()> done;  // called when the exchange is over; may begin the next exchange
  };
  // Begins the exchange. After a failure, or if the previous exchange is not over, returns false and calls nothing.
  virtual bool begin(Exchange exchange) = 0;
  // Allows the first `steps` steps, if `number` is the exchange begun last. Call it only after all members have
  // promised to issue these steps. The permission cannot be taken back.
  virtual void allow(std::uint64_t number, std::uint64_t steps) = 0;
  // Ends the exchange with the steps that are allowed so far, if `number` is the exchange begun last.
  virtual void finish(std::uint64_t number) = 0;
  // Makes the replicator fail at once, for this reason. Does not wait for the GPU.
  virtual void give_up(const std::string& why) = 0;
};

}  // namespace ckpt::device
