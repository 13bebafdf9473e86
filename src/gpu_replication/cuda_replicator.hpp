// CudaReplicator sends pieces from this rank's GPU to the others of its replication group, and receives theirs. It
// serves one incarnation of the job.
//
// Only its progress thread issues work, so all members issue in one order. It runs one exchange after the other. The
// first failure ends it: it gives up what is under way, reports once and retries nothing. A watchdog keeps the thread's
// deadlines. If that thread hangs in the driver, the watchdog ends the replicator.
//
// Thread-safe. Only wait_to_meet() and the destructor wait for the GPU or for other members; the destructor waits for
// at most `end_timeout_ms`. What NCCL and the driver have not released by then is freed as soon as possible.
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
    std::uint32_t member;  // this one
  };
  struct Settings {
    CudaExchange::Settings exchange;
    std::int64_t meet_timeout_ms = 60'000;  // limit for all members to meet
    std::int64_t end_timeout_ms = 10'000;   // limit for ending it, after a failure or in the destructor
  };
  // Called at most once, on a thread of the replicator's or in its destructor. Then nothing reads or writes the memory
  // given to begin() any more, unless `is_stuck`. If it is stuck, that memory must stay for good, and so must whatever
  // a `fill` uses that has not returned.
  //
  // This and the callbacks of an exchange must not throw, block or destroy the replicator. No callback runs after this
  // one, or after the destructor. A thread of the replicator's may destroy the callbacks later than that.
  using Failed = std::function<void(const std::string& why, bool is_stuck)>;

  // Throws Failure if there is no thread or no such GPU, or if `environment`, as in environ(7) or null, overrides what
  // a communicator of ours asks for. Other failures go to `failed`.
  CudaReplicator(int ordinal, const Group& group, const Settings& settings, const char* const* environment,
                 Failed failed);
  ~CudaReplicator();
  CudaReplicator(const CudaReplicator&) = delete;
  CudaReplicator& operator=(const CudaReplicator&) = delete;

  // Returns false if the members have not met by then, or after a failure.
  bool wait_to_meet(Deadline deadline);
  // Begins an exchange, as CudaExchange::begin() does. The progress thread calls `fill`, `progress` on each progress,
  // and at the end `done`, unless the replicator fails. `done` may begin the next exchange. Returns false, and calls
  // nothing, after a failure or if the previous exchange is not over.
  using Progress = std::function<void(std::uint64_t filled_steps, std::uint64_t received_steps)>;
  using Done = std::function<void()>;
  struct Exchange {
    std::uint64_t number;  // the same for all members, and used once
    schedule::ExchangePlan plan;
    CudaExchange::Fill fill;
    std::vector<std::byte*> to;
    Progress progress;
    Done done;
  };
  bool begin(Exchange exchange);
  // Allows the steps below this one. Ignored if `number` is not the exchange begun last, because members' promises hold
  // for one exchange alone. It cannot be taken back.
  void allow(std::uint64_t number, std::uint64_t steps);
  // Ends the exchange with the steps that are allowed so far. Ignored likewise.
  void finish(std::uint64_t number);
  // Makes it fail at once, as an error here would. For exchanges that can never end: they need not wait for a deadline.
  void give_up(const std::string& why);
  // True if it can run exchanges now, or once the members have met.
  bool works() const;

 private:
  class ProgressThread;
  std::shared_ptr<ProgressThread> progress_thread_;
  std::unique_ptr<LeavableThread> watchdog_, thread_;
};

}  // namespace ckpt::device
