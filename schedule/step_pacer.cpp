#include "schedule/step_pacer.hpp"

#include <algorithm>

namespace ckpt::schedule {

// Until the first few steps have arrived, the time of a step is unknown. Until then, steps go one by one.
std::uint64_t StepPacer::fitting_bytes(double idle_s) const {
  constexpr double most_bytes = 1e18;
  const auto link = estimate_.link();
  if (!link) return idle_s > 0 ? chunk_bytes_ : 0;
  return static_cast<std::uint64_t>(std::clamp((idle_s - link->startup_s) * link->bytes_per_s, 0.0, most_bytes));
}

std::uint64_t StepPacer::chunk_bytes(const Training& training) const {
  if (!estimate_.link()) return chunk_bytes_max_;
  const std::uint64_t grains = fitting_bytes(training.longest_idle_s) / buffers_ / grain_bytes_;
  return std::clamp(grains * grain_bytes_, grain_bytes_, chunk_bytes_max_);
}

void StepPacer::begin(std::uint64_t chunk_bytes, std::uint64_t longest_bytes) {
  chunk_bytes_ = chunk_bytes;
  longest_bytes_ = longest_bytes;
  promised_ = allowed_ = received_ = 0;
  sample_.reset();
}

std::uint64_t StepPacer::promise(std::uint64_t ready, const Training& training) {
  const auto& [state, idle_s] = training.idle_forecast;
  if (state == NetworkState::free) return promised_ = std::max(promised_, ready);
  if (state != NetworkState::idle || idle_s <= 0) return promised_;
  const std::uint64_t first = promised_ == 0 ? 1 : 0;
  const std::uint64_t fitting = std::max(received_ + fitting_bytes(idle_s) / chunk_bytes_, first);
  return promised_ = std::max(promised_, std::min(ready, fitting));
}

void StepPacer::allowed(double now_s, std::uint64_t steps) {
  if (steps <= allowed_) return;
  if (received_ == allowed_) sample_ = {now_s, allowed_, steps};
  allowed_ = steps;
}

void StepPacer::received(double now_s, std::uint64_t steps) {
  received_ = std::max(received_, steps);
  if (!sample_ || received_ < sample_->end_step) return;
  const std::uint64_t first_byte = sample_->first_step * chunk_bytes_;
  const std::uint64_t size_bytes = std::min(sample_->end_step * chunk_bytes_, longest_bytes_) - first_byte;
  // A step that took far longer than expected waited for something else, such as a member's agent. So its time counts
  // only up to a limit. If the network has become slower, more such steps follow.
  const auto link = estimate_.link();
  const double most_s = link ? 4 * link->time_s(size_bytes) : std::numeric_limits<double>::infinity();
  estimate_.add(size_bytes, std::min(now_s - sample_->began_s, most_s));
  sample_.reset();
}

}  // namespace ckpt::schedule
