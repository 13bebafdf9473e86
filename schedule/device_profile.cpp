#include "schedule/device_profile.hpp"

#include <algorithm>

namespace ckpt::schedule {

namespace {

constexpr std::size_t bubbles_max = 4096;  // in an iteration to learn from

// Bubble i lies between the ends of computation i and the begin of computation i + 1.
DeviceProfile device_profile_of(const Profile& profile) {
  DeviceProfile of;
  for (std::size_t i = 0; i < profile.spans.size(); ++i) {
    const IdleSpan& compute = profile.spans[i];
    if (i != 0) {
      const IdleSpan& before = profile.spans[i - 1];
      of.spans.push_back({DeviceActivity::bubble, std::max(0.0, compute.start_s - before.start_s - before.mean_s)});
    }
    of.spans.push_back({DeviceActivity::compute, compute.mean_s});
  }
  of.iterations = profile.iterations;
  return of;
}

}  // namespace

double DeviceProfile::bubble_s() const {
  double total_s = 0;
  for (const DeviceSpan& span : spans)
    if (span.activity == DeviceActivity::bubble) total_s += span.length_s;
  return total_s;
}

void DeviceProfiler::observe(const DeviceMark& mark) {
  switch (mark.kind) {
    case DeviceMark::Kind::bubble_begin:
      is_open_ = true;
      if (++begun_ > bubbles_max) is_whole_ = false;
      if (is_whole_) recorder_.comm_begin(mark.at_s);
      return;
    case DeviceMark::Kind::bubble_end:
      if (is_open_ && is_whole_) recorder_.comm_end(mark.at_s);
      is_open_ = false;
      return;
    case DeviceMark::Kind::update:
      if (is_whole_) stretch_ended(mark.at_s);
      is_whole_ = false;
      return;
    case DeviceMark::Kind::iteration:
      recorder_.begin_iteration(mark.at_s);
      is_whole_ = !is_open_;
      begun_ = 0;
      return;
  }
}

void DeviceProfiler::stretch_ended(double at_s) {
  const IterationTimeline stretch = recorder_.end_iteration(at_s);
  const bool was_learning = profiler_.is_learning();
  profiler_.add(stretch);
  if (was_learning && !profiler_.is_learning()) profile_ = device_profile_of(profiler_.profile());
  last_s_[stretches_++ % last_s_.size()] = stretch.length_s;
  if (profile_.iterations == 0) return;
  const std::size_t known = std::min<std::size_t>(stretches_, last_s_.size());
  profile_.stretch_s = *std::min_element(last_s_.begin(), last_s_.begin() + static_cast<std::ptrdiff_t>(known));
}

}  // namespace ckpt::schedule
