// The thread that issues what goes from this GPU to others: the only one, so that all members issue in one order. It
// carries exchanges, one after the other, within one group of members and for one life of the job. The first thing that
// goes wrong ends it: what is under way is given up, that is told once, and nothing is tried again.
//
// Thread-safe; no call waits for the GPU or for other members, but the destructor: ten seconds for what is under way,
// and for as long as the driver takes to free memory.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "device/cuda_exchange.hpp"

namespace ckpt::device {

class CudaPath {
 public:
  struct Group {
    nccl::UniqueId id;
    std::uint32_t members;
    std::uint32_t member;  // this one
  };
  struct Settings {
    CudaExchange::Settings exchange;
    std::int64_t meet_timeout_ms = 60'000;  // until all members are there
  };
  // On the path's thread, once at most; it does not throw. Nothing reads or writes what was given to begin() any more,
  // unless `is_stuck`: then that memory must stay for good.
  using Failed = std::function<void(const std::string& why, bool is_stuck)>;

  // Throws Failure where there is no thread or no such GPU; all else is told.
  CudaPath(int ordinal, const Group& group, const Settings& settings, Failed failed);
  ~CudaPath();
  CudaPath(const CudaPath&) = delete;
  CudaPath& operator=(const CudaPath&) = delete;

  // As CudaExchange::begin(); `fill` is called on the path's thread. `done` is called there when all has landed, unless
  // the path fails; it does not throw, and the next exchange may begin in it. False, and nothing is called, where the
  // path has failed or the exchange before is not over.
  using Done = std::function<void()>;
  struct Exchange {
    schedule::ExchangePlan plan;
    CudaExchange::Fill fill;
    std::vector<std::byte*> to;
    Done done;
  };
  bool begin(Exchange exchange);
  // Steps of the exchange that was begun last.
  void allow(std::uint64_t steps);
  // Whether it carries anything, or will once the members have met.
  bool works() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  void run();
  void carry_all();
  void meet();
  void carry(Exchange exchange);
  void end(std::string why);
  bool stopped() const;
  bool goes_on() const;

  const Context context_;
  const Group group_;
  const Settings settings_;
  const Failed failed_;
  std::unique_ptr<CudaExchange> exchange_;  // the thread's

  mutable std::mutex mutex_;  // for all below
  std::condition_variable changed_;
  std::optional<Exchange> next_;
  bool busy_ = false;  // from begin() until `done`
  bool works_ = true, stop_ = false;
  std::uint64_t allowed_ = 0;
  std::thread thread_;
};

}  // namespace ckpt::device
