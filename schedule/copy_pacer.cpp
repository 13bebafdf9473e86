#include "schedule/copy_pacer.hpp"

#include <algorithm>
#include <cstdint>

namespace ckpt::schedule {

namespace {

// mu of GEMINI: the share of each bubble, and of the stretch, that is planned for. The rest is a margin.
constexpr double usable = 0.9;
constexpr double least_bubble_share = 0.1;  // if less of a copy fits into bubbles, layers gain nothing
constexpr double least_wait_s = 50e-6;      // a shorter pause costs more than it spares

double length_of(const std::vector<DeviceSpan>& spans, std::size_t first, DeviceActivity activity) {
  double total_s = 0;
  for (std::size_t i = first; i < spans.size(); ++i)
    if (spans[i].activity == activity) total_s += spans[i].length_s;
  return total_s;
}

}  // namespace

bool CopyPacer::begin(const DeviceProfile& profile, std::uint64_t size_bytes, double bytes_per_s) {
  spans_ = profile.spans;
  is_long_.assign(profile.bubbles(), false);
  bool has_bubble = false;
  for (std::uint32_t i = 0; i < profile.bubbles(); ++i) {
    DeviceSpan& bubble = spans_[2 * i + 1];
    is_long_[i] = bubble.length_s >= least_bubble_s;
    if (!is_long_[i]) bubble.activity = DeviceActivity::compute;
    has_bubble = has_bubble || is_long_[i];
  }
  end_s_ = usable * profile.stretch_s;
  bytes_per_s_ = bytes_per_s;
  has_waited_ = false;
  planned_after_.reset();
  next_s_ = 0;
  plan_ = {};
  if (!has_bubble || !(bytes_per_s > 0)) return false;
  CopyRequest request;
  request.spans = spans_;
  request.state_bytes = size_bytes;
  request.usable = usable;
  request.link.bytes_per_s = bytes_per_s_;
  plan_ = plan_copies(request);
  return static_cast<double>(plan_.bubble_bytes) >= least_bubble_share * static_cast<double>(size_bytes);
}

std::uint32_t CopyPacer::next_long_bubble(std::uint32_t bubble) const {
  for (; bubble < is_long_.size(); ++bubble)
    if (is_long_[bubble]) return bubble;
  return UINT32_MAX;
}

// How fast to copy beside computation from now on. The span of computation that goes on counts as a whole: what is
// already over of it is taken off at the next plan.
void CopyPacer::plan_rest(const DeviceNow& now, std::uint64_t left_bytes) {
  CopyRequest request;
  const std::size_t first = std::min<std::size_t>(2 * std::size_t{now.bubbles}, spans_.size());
  request.spans.assign(spans_.begin() + static_cast<std::ptrdiff_t>(first), spans_.end());
  request.state_bytes = left_bytes;
  request.usable = usable;
  request.link.bytes_per_s = bytes_per_s_;
  const std::uint64_t beside_bytes = left_bytes - plan_copies(request).bubble_bytes;
  const double bubbles_s = length_of(spans_, first, DeviceActivity::bubble);
  const double compute_s = std::max(0.0, end_s_ - now.at_s - bubbles_s);
  // Never faster than the threads can, which the caller sees as no pause at all.
  const double full = 1 / bytes_per_s_;
  seconds_per_byte_ = beside_bytes == 0 ? 0 : std::max(full, compute_s / static_cast<double>(beside_bytes));
  planned_after_ = now.bubbles;
}

CopyPacer::Turn CopyPacer::turn(const DeviceNow& now, std::uint64_t left_bytes, std::uint64_t chunk_bytes) {
  const std::uint64_t chunk = std::min(left_bytes, chunk_bytes);
  if (now.is_in_bubble) return {chunk, 0};
  const double spare_s = end_s_ - now.at_s - static_cast<double>(left_bytes) / bytes_per_s_;
  if (spare_s <= 0) return {chunk, 0};
  if (planned_after_ != now.bubbles) {
    plan_rest(now, left_bytes);
    next_s_ = std::min(next_s_, now.at_s + seconds_per_byte_ * static_cast<double>(chunk));
  }
  const double chunk_s = seconds_per_byte_ * static_cast<double>(chunk);
  if (seconds_per_byte_ > 0 && now.at_s + least_wait_s >= next_s_) {
    next_s_ = std::max(next_s_, now.at_s - chunk_s) + chunk_s;  // a thread that woke up late makes up for it
    return {chunk, 0};
  }
  has_waited_ = true;
  return {0, seconds_per_byte_ > 0 ? std::min(spare_s, next_s_ - now.at_s) : spare_s};
}

}  // namespace ckpt::schedule
