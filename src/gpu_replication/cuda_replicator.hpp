// CudaReplicator sends pieces from this rank's GPU to the other members of its replication group, and receives theirs.
// It serves one incarnation of the job.
//
// Only its progress thread issues work, so all members issue in one order. It runs one exchange after the other. The
// first failure ends the replicator: it gives up the exchange, reports the failure once and retries nothing. A watchdog
// enforces the deadlines of the progress thread. If that thread hangs in the driver, the watchdog ends the replicator.
//
// Thread-safe. Only wait_to_meet() and the destructor wait for the GPU or for other members. The destructor waits for
// at most `end_timeout_ms`. What NCCL and the driver have not released by then, a thread frees as soon as possible.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/leavable_thread.hpp"
#include "gpu_replication/cuda_exchange.hpp"

namespace ckpt::device {

class CudaReplicator {
 public:
  struct Group {
    nccl::UniqueId id;
    std::uint32_t members;
    std::uint32_t member;  // number of this one
  };
  struct Settings {
    CudaExchange::Settings exchange;
    std::int64_t meet_timeout_ms = 60'000;  // how long the members may take to connect to each other
    std::int64_t end_timeout_ms = 10'000;   // how long a failure or the destructor waits until NCCL has ended
  };
  // Reports the failure. Called at most once, on a thread of the replicator or in its destructor. From then on nothing
  // reads or writes the memory given to begin(), unless `is_stuck`. `is_stuck`: the GPU or NCCL did not stop in time
  // and may still access that memory, so that memory must stay for good. If a `fill` callback has not returned, all
  // that it uses must stay, too.
  //
  // This function and the callbacks of an exchange must not throw, block or destroy the replicator. No callback runs
  // after this one, or after the destructor. A thread of the replicator may destroy the callbacks later than that.
  using Failed = std::function<void(const std::string& why, bool is_stuck)>;

  // `ordinal`: the GPU's number for CUDA. `environment`: as in environ(7); null: empty. Throws Failure if there is no
  // such GPU, if no thread can be started, or if the environment overrides a setting of our communicator. Other
  // failures go to `failed`.
  CudaReplicator(int ordinal, const Group& group, const Settings& settings, const char* const* environment,
                 Failed failed);
  ~CudaReplicator();
  CudaReplicator(const CudaReplicator&) = delete;
  CudaReplicator& operator=(const CudaReplicator&) = delete;

  // Waits until all members have met: each one is connected to all others over NCCL. Returns false if they have not met
  // by the deadline, or after a failure.
  bool wait_to_meet(Deadline deadline);
  // Begins an exchange. `fill` and `to` are as in CudaExchange::begin(): how to copy a chunk of this member's piece,
  // and where each member's piece goes. The progress thread calls `fill` for each chunk, `progress` on each progress,
  // and `done` at the end, unless the replicator fails. `done` may begin the next exchange. After a failure, or if the
  // previous exchange is not over, begin() returns false and calls nothing.
  using Progress = std::function<void(std::uint64_t filled_steps, std::uint64_t received_steps)>;
  using Done = std::function<void()>;
  struct Exchange {
    std::uint64_t number;  // the same on all members, and different for each exchange
    schedule::ExchangePlan plan;
    CudaExchange::Fill fill;
    std::vector<std::byte*> to;
    Progress progress;
    Done done;
  };
  bool begin(Exchange exchange);
  // Allows the first `steps` steps, which cannot be taken back. Ignored if `number` is not the exchange begun last,
  // because members' promises hold for one exchange alone.
  void allow(std::uint64_t number, std::uint64_t steps);
  // Ends the exchange with the steps that are allowed so far. Ignored if `number` is not the exchange begun last.
  void finish(std::uint64_t number);
  // Makes the replicator fail at once, for this reason. Use it for an exchange that can never end. Otherwise the other
  // members would wait until the deadline of a step.
  void give_up(const std::string& why);
  // False after a failure. True: it can run exchanges now, or will be able to when the members have met.
  bool works() const;

 private:
  class ProgressThread;
  std::shared_ptr<ProgressThread> progress_thread_;
  std::unique_ptr<LeavableThread> watchdog_, thread_;
};

}  // namespace ckpt::device
