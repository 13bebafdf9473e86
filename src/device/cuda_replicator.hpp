// The thread that issues what goes from this GPU to others: the only one, so that all members issue in one order. It
// carries exchanges, one after the other, within one group of members and for one incarnation of the job. The first
// thing that goes wrong ends it: what is under way is given up, that is told once, and nothing is tried again. Beside
// it a watchdog keeps its deadlines, and gives up in its place where it hangs in the driver.
//
// Thread-safe; no call waits for the GPU or for other members, but wait_to_meet() and the destructor, the latter until
// `end_timeout_ms`. What NCCL and the driver do not let go of by then is left to the thread, which frees it as soon as
// it can.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/leavable_thread.hpp"
#include "device/cuda_exchange.hpp"

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
    std::int64_t meet_timeout_ms = 60'000;  // until all members are there
    std::int64_t end_timeout_ms = 10'000;   // until nothing is left of it, once it fails or is to end
  };
  // On a thread of the replicator's or in its destructor, once at most. Nothing reads or writes what was given to
  // begin() any more, unless `is_stuck`: then that memory must stay for good, and so must what a `fill` uses that has
  // not come back.
  //
  // What is called, this and what comes with an exchange, neither throws nor blocks, and does not end the replicator.
  // Nothing is called once this was told or the replicator has gone. What it owns may go later than the replicator, on
  // a thread of its.
  using Failed = std::function<void(const std::string& why, bool is_stuck)>;

  // Throws Failure where there is no thread or no such GPU, or where `environment`, as in environ(7) or null, overrides
  // what a communicator of ours asks for; all else is told.
  CudaReplicator(int ordinal, const Group& group, const Settings& settings, const char* const* environment,
                 Failed failed);
  ~CudaReplicator();
  CudaReplicator(const CudaReplicator&) = delete;
  CudaReplicator& operator=(const CudaReplicator&) = delete;

  // False where the members have not met by then, or it has failed.
  bool wait_to_meet(Deadline deadline);
  // As CudaExchange::begin(); `fill` is called on the replicator's thread. So are `progress`, each time that there is
  // more of it, and, unless the replicator fails, `done` when that is all; the next exchange may begin in it. False,
  // and nothing is called, where the replicator has failed or the exchange before is not over.
  using Progress = std::function<void(std::uint64_t filled_steps, std::uint64_t received_steps)>;
  using Done = std::function<void()>;
  struct Exchange {
    std::uint64_t number;  // the same for all members, and never again
    schedule::ExchangePlan plan;
    CudaExchange::Fill fill;
    std::vector<std::byte*> to;
    Progress progress;
    Done done;
  };
  bool begin(Exchange exchange);
  // Steps below this one of the exchange of this number. Where that is not the one that was begun last, nothing: what
  // members have said of another holds for that one alone. What was allowed stays so.
  void allow(std::uint64_t number, std::uint64_t steps);
  // Likewise: no more steps of it will be allowed.
  void finish(std::uint64_t number);
  // Fails it, as what went wrong here would: for what is known to end nowhere, which so waits for no deadline.
  void give_up(const std::string& why);
  // Whether it carries anything, or will once the members have met.
  bool works() const;

 private:
  class ProgressThread;
  std::shared_ptr<ProgressThread> progress_thread_;
  std::unique_ptr<LeavableThread> watchdog_, thread_;
};

}  // namespace ckpt::device
