// CopyPacer decides when the copy threads of a capture copy: REFT's hierarchical asynchronous snapshotting, carried out
// (schedule/layers.hpp plans it). In a bubble they copy as fast as they can. Beside computation they copy at the lowest
// rate with which the copy still ends before the update. Whenever a bubble ends, the pacer plans anew with what is
// left, because bubbles vary. If only enough time is left to copy the rest at full speed, no bubble is awaited any
// more. No clock: callers pass times in, in seconds since snapshot() was called. Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "schedule/device_profile.hpp"

namespace ckpt::schedule {

// What the training thread does now.
struct DeviceNow {
  double at_s = 0;            // since snapshot()
  std::uint32_t bubbles = 0;  // that have begun since then
  bool is_in_bubble = false;
};

class CopyPacer {
 public:
  // A bubble that is shorter on average counts as computation: it would be over before a thread wakes up.
  static constexpr double least_bubble_s = 100e-6;

  // Plans a capture of `size_bytes`. `bytes_per_s`: how fast all copy threads together copy; 0: not known yet. Returns
  // false if it has nothing to say about this capture, which should then be copied at once: there is no profile, less
  // than a tenth of the copy fits into bubbles, or the rate is not known.
  bool begin(const DeviceProfile& profile, std::uint64_t size_bytes, double bytes_per_s);

  struct Turn {
    std::uint64_t size_bytes = 0;  // copy so much now, at most; 0: nothing yet
    double wait_s = 0;             // if nothing: ask again after this time, or when a bubble begins
  };
  // What a copy thread that is free shall do. `left_bytes`: what no thread has begun to copy. `chunk_bytes`: how much
  // it copies at a time.
  Turn turn(const DeviceNow& now, std::uint64_t left_bytes, std::uint64_t chunk_bytes);

  // The first bubble, from number `bubble` on, that is long enough to copy in; UINT32_MAX if there is none. Bubbles are
  // numbered from 0 in each iteration.
  std::uint32_t next_long_bubble(std::uint32_t bubble) const;
  // True if turn() has let a thread wait in this capture.
  bool has_waited() const { return has_waited_; }
  // The plan with which the capture began.
  const CopyPlan& plan() const { return plan_; }

 private:
  void plan_rest(const DeviceNow& now, std::uint64_t left_bytes);

  std::vector<DeviceSpan> spans_;  // of the profile; bubbles that are too short are computation
  std::vector<bool> is_long_;      // by number of the bubble
  double end_s_ = 0;               // when the copy shall have ended
  double bytes_per_s_ = 0;
  bool has_waited_ = false;
  CopyPlan plan_;
  // The plan for the rest, made after so many bubbles. None: it must be made.
  std::optional<std::uint32_t> planned_after_;
  double seconds_per_byte_ = 0;  // beside computation; 0: copy nothing there
  double next_s_ = 0;            // when the next chunk beside computation is due
};

}  // namespace ckpt::schedule
