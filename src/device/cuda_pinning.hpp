// CudaPinning keeps the ranges of host memory pinned that captures go to. Pinning takes seconds for a large slot, so
// another thread does it: the caller's in prepare(), or one of this object.
//
// Any thread may call prepare() and failure(), the device's user the rest. use() waits for a pinning that it began
// before.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "device/cuda_handles.hpp"
#include "device/device.hpp"

namespace ckpt::device {

class CudaPinning {
 public:
  explicit CudaPinning(const Context& context) : context_(context) {}
  // Waits for a pinning that is under way. Needs a current context.
  ~CudaPinning();
  CudaPinning(const CudaPinning&) = delete;
  CudaPinning& operator=(const CudaPinning&) = delete;

  // Pins these ranges, for a later use(), and returns when that is done. `owner` keeps them mapped.
  void prepare(std::vector<Range> ranges, std::shared_ptr<const void> owner);
  // A range, as long as it is pinned. Its destructor waits for the GPU.
  struct Pinned {
    Range range;
    std::shared_ptr<const void> owner;
    std::vector<Registration> registrations;
  };
  // From now on captures go to these ranges, and no longer to others. Begins to pin those that are not pinned yet.
  // Returns the ranges that are not used any more.
  std::vector<Pinned> use(std::vector<Range> ranges);
  void use_also(Range range);

  // Waits until all ranges in use are pinned, or cannot be. Returns false if the deadline passes first.
  bool wait(Deadline deadline);
  // True if all of this is within one range that is pinned.
  bool covers(const Range& part) const;
  // Why a range could not be pinned. Empty if there is no such range.
  std::string failure() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool is_pinned(const Range& range) const;
  void pin(const std::vector<Range>& ranges, const std::shared_ptr<const void>& owner);
  void begin(const std::vector<Range>& ranges);
  void pin_wanted();

  const Context& context_;
  std::mutex one_at_a_time_;  // held while ranges are pinned
  mutable std::mutex mutex_;  // for all below
  std::condition_variable changed_;
  std::vector<Pinned> pinned_;
  std::string failure_;
  std::vector<Range> wanted_;  // in use, and to be pinned
  bool is_pinning_ = false;    // on thread_
  std::thread thread_;         // only the device's user looks at it
};

}  // namespace ckpt::device
