// DeviceProfiler learns from a rank's marks when its device is idle while a capture may run. That is the stretch of an
// iteration from snapshot() to before_update(), in which the state does not change. An idle time of the device in it is
// a bubble: the training thread waits for other ranks, or the stream of a GPU does. REFT has an online bubble profiler,
// too (section 4.1). No clock: callers pass times in, in seconds of any one clock. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/layers.hpp"
#include "schedule/profile.hpp"

namespace ckpt::schedule {

// What a device does in the stretch, over the iterations of a profile. Spans of computation and bubbles take turns: the
// first and the last are computation, and may have the length 0. So bubble i, counted from 0, is span 2 i + 1.
struct DeviceProfile {
  std::vector<DeviceSpan> spans;  // empty: there is no profile
  // Time from snapshot() to before_update(), without pauses: the shortest of the last few iterations. The copy of a
  // capture makes iterations longer, above all while captures copy at once, as they do until a profile is known.
  double stretch_s = 0;
  std::uint32_t iterations = 0;  // how many iterations it was learned from
  std::uint32_t bubbles() const { return static_cast<std::uint32_t>(spans.size() / 2); }
  double bubble_s() const;  // mean time of all bubbles of an iteration
};

struct DeviceMark {
  // iteration: snapshot() was called. update: before_update() was called.
  enum class Kind { bubble_begin, bubble_end, update, iteration } kind = Kind::iteration;
  double at_s = 0;
};

class DeviceProfiler {
 public:
  // Throws std::invalid_argument if an option is out of range (see Profiler).
  explicit DeviceProfiler(const ProfilerOptions& options = {}) : profiler_(options) {}

  // Call this for every mark, in order. A bubble must end before the next one begins. Bubbles between the mark `update`
  // and the next mark `iteration` are left out of the profile.
  void observe(const DeviceMark& mark);
  // Call this if marks were lost. Nothing is learned from this iteration.
  void lost_marks() { is_whole_ = false; }

  // When training shows another pattern, this stays the old profile until the new one is learned.
  const DeviceProfile& profile() const { return profile_; }
  std::uint32_t relearned() const { return profiler_.relearned(); }  // how often a profile turned out to be old

 private:
  void stretch_ended(double at_s);

  Recorder recorder_;
  Profiler profiler_;  // learns when the device computes: the "idle spans" of what it records are between bubbles
  DeviceProfile profile_;
  std::array<double, 8> last_s_{};  // the last stretches
  std::size_t stretches_ = 0;       // so far
  bool is_whole_ = false;           // all marks since the iteration began were seen, and the stretch goes on
  bool is_open_ = false;            // in a bubble
  std::size_t begun_ = 0;           // bubbles of this iteration
};

}  // namespace ckpt::schedule
