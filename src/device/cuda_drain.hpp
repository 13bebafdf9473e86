// CudaDrain waits until the GPU has finished all that was enqueued on some streams when the object was made. It adds
// only an event to each stream.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "device/cuda_handles.hpp"

namespace ckpt::device {

class CudaDrain {
 public:
  CudaDrain(std::initializer_list<CUstream> streams) {
    try {
      for (const CUstream stream : streams) ends_.emplace_back().record(stream);
    } catch (const Failure&) {
      is_known_ = false;
    }
  }

  // Returns false if the work has not finished by the deadline, or if the context has died: then it is not known what
  // the work did before.
  bool wait(Deadline deadline) const {
    constexpr auto pause = std::chrono::microseconds(100);
    try {
      while (is_known_ && !reached()) {
        if (deadline.passed()) return false;
        std::this_thread::sleep_for(pause);
      }
      return is_known_;
    } catch (const Failure&) {
      return false;
    }
  }

 private:
  bool reached() const {
    return std::all_of(ends_.begin(), ends_.end(), [](const Event& end) { return end.reached(); });
  }

  std::vector<Event> ends_;
  bool is_known_ = true;
};

}  // namespace ckpt::device
