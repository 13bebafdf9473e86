#include "client/layered_copy.hpp"

#include <algorithm>
#include <utility>

#include "base/futex.hpp"
#include "kernels/digest.hpp"

namespace ckpt::client {
namespace {

constexpr std::size_t batch_leaves_max = 16;  // as CopyPool: 1 MiB
constexpr std::size_t chunk_leaves = 4;       // 256 KiB, some 30 us: a bubble that ends is left soon
constexpr std::uint32_t pause_max = 64;
constexpr std::uint32_t trusted_after = 16;  // captures in time, after which the next pause is short again
constexpr double longest_wait_s = 1;         // only bounds the wait
// On a GPU, so much is enqueued ahead: two chunks, or as much as is copied until the device's thread looks again.
constexpr std::size_t chunks_ahead = 2;
constexpr double ahead_s = 500e-6;

}  // namespace

bool LayeredCopy::began_iteration(Clock::time_point now) {
  snapshot_at_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  const bool was_in_bubble = depth_.exchange(0) != 0;
  state_.fetch_and(hurrying);
  return was_in_bubble;
}

bool LayeredCopy::bubble_begin() {
  if (depth_.fetch_add(1, std::memory_order_relaxed) != 0) return false;
  // Not by addition alone: another thread may be in began_iteration(), and no bit may carry into its neighbour.
  std::uint32_t state = state_.load();
  while (!state_.compare_exchange_weak(state, (state + one_bubble) | in_bubble)) {
  }
  const std::uint32_t number = state / one_bubble;
  // Sequentially consistent, as in wait(): either the waiter sees the bubble, or this thread sees the waiter.
  if (waiters_.load() != 0 && number >= wake_from_.load()) futex_wake_all(state_, FutexScope::process);
  return true;
}

std::optional<bool> LayeredCopy::bubble_end() {
  std::uint32_t depth = depth_.load(std::memory_order_relaxed);
  do {
    if (depth == 0) return std::nullopt;
  } while (!depth_.compare_exchange_weak(depth, depth - 1, std::memory_order_relaxed));
  if (depth != 1) return false;
  state_.fetch_and(~in_bubble);
  return true;
}

// With a GPU, called if chunks are left that a plan may have put off.
void LayeredCopy::hurry() {
  state_.fetch_or(hurrying);
  if (gpu_) {
    const std::lock_guard lock(mutex_);
    is_late_ = is_late_ || (is_planned_ && (pacer_.has_waited() || !gpu_came_at_));
  }
  if (waiters_.load() != 0) futex_wake_all(state_, FutexScope::process);
}

void LayeredCopy::begin(std::shared_ptr<arena::Control> control, std::optional<GpuBubbles> gpu) {
  judge_last();
  gpu_ = std::move(gpu);
  gpu_came_at_.reset();
  if (control != control_) {
    log_.reset();
    profiler_.reset();
    control_ = std::move(control);
  }
  has_begun_ = is_planned_ = is_late_ = is_over_ = is_at_rest_ = false;
  forget_bursts();
  state_.fetch_and(~hurrying);
}

void LayeredCopy::begin_hurried() {
  judge_last();
  gpu_.reset();
  is_planned_ = is_late_ = is_over_ = false;
  has_begun_ = is_at_rest_ = true;
  forget_bursts();
  state_.fetch_or(hurrying);
}

void LayeredCopy::end() {
  is_over_ = true;
  if (is_late_) late_.fetch_add(1, std::memory_order_relaxed);
  if (!control_) return;
  for (std::size_t i = 0; i < burst_count_; ++i)
    arena::CommWriter(control_->comm()).copied(bursts_[i].begin, bursts_[i].end);
  forget_bursts();
}

// What the capture before has shown.
void LayeredCopy::judge_last() {
  if (busy_s_ > 0) {
    const double rate = busy_bytes_ / busy_s_;
    bytes_per_s_ = bytes_per_s_ == 0 ? rate : 0.75 * bytes_per_s_ + 0.25 * rate;
  }
  busy_s_ = busy_bytes_ = 0;
  if (!is_planned_) {
    if (pause_ != 0) --pause_;
  } else if (!is_over_) {
    return;  // it was given up, which says nothing about its plan
  } else if (is_late_) {
    pause_ = std::exchange(next_pause_, std::min(2 * next_pause_, pause_max));
    in_time_ = 0;
  } else if (++in_time_ >= trusted_after) {
    next_pause_ = 1;
  }
}

// Reads what training has done since the capture before.
void LayeredCopy::learn() {
  if (!log_) {
    log_.emplace(control_->comm());
    profiler_.emplace(schedule::ProfilerOptions{.iterations = settings_.profile_iterations});
    return;
  }
  events_.clear();
  const bool is_whole = log_->read(events_);
  for (const arena::CommEvent& event : events_)
    if (const auto mark = arena::device_mark_of(event, Clock::now())) profiler_->observe(*mark);
  if (!is_whole) profiler_->lost_marks();
}

LayeredCopy::Turn LayeredCopy::unpaced(std::size_t left, Layer layer) const {
  return {std::clamp<std::size_t>(left / (4 * settings_.threads), 1, batch_leaves_max), layer};
}

schedule::DeviceNow LayeredCopy::now(std::uint32_t state) const {
  if (gpu_) {
    const auto [begun, is_in_one] = gpu_->now();
    return {seconds_of(Clock::now()) - seconds_of(*gpu_came_at_), begun, is_in_one};
  }
  const Clock::time_point snapshot_at{Clock::duration(snapshot_at_.load(std::memory_order_relaxed))};
  return {seconds_of(Clock::now()) - seconds_of(snapshot_at), state / one_bubble, (state & in_bubble) != 0};
}

bool LayeredCopy::is_in_bubble() const { return gpu_ ? gpu_->now().is_in_one : (state_.load() & in_bubble) != 0; }

double LayeredCopy::bytes_per_s() const { return gpu_ ? bytes_per_s_ : bytes_per_s_ * settings_.threads; }

// On the first turn of a capture. Without memory for a plan, the capture copies without one.
void LayeredCopy::plan(std::uint32_t state, std::size_t left) try {
  if (!settings_.follows_plan) return;
  learn();
  is_planned_ = pause_ == 0 && (state & hurrying) == 0 &&
                pacer_.begin(profiler_->profile(), left * kernels::leaf_size_bytes, bytes_per_s());
  if (is_planned_) layered_.fetch_add(1, std::memory_order_relaxed);
} catch (const std::exception&) {
  is_planned_ = false;
}

// Returns nothing if the thread shall wait.
std::optional<LayeredCopy::Turn> LayeredCopy::turn_now(std::uint32_t state, std::size_t left, double& wait_s) try {
  if ((state & hurrying) != 0) return unpaced(left, in_update);
  const Layer layer = (state & in_bubble) != 0 ? in_bubbles : beside_computation;
  if (!is_planned_) return unpaced(left, layer);
  const auto turn = pacer_.turn(now(state), left * kernels::leaf_size_bytes, chunk_leaves * kernels::leaf_size_bytes);
  if (turn.size_bytes != 0) return Turn{std::min(left, chunk_leaves), layer};
  wait_s = turn.wait_s;
  wake_from_.store(pacer_.next_long_bubble(state / one_bubble));
  return std::nullopt;
} catch (const std::exception&) {
  is_planned_ = false;
  return unpaced(left, beside_computation);
}

LayeredCopy::Turn LayeredCopy::await_turn(std::size_t left) {
  for (;;) {
    const std::uint32_t state = state_.load();
    double wait_s = 0;
    {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(has_begun_, true)) plan(state, left);
      if (const auto turn = turn_now(state, left, wait_s)) return *turn;
    }
    wait(state, wait_s);
  }
}

bool LayeredCopy::holds_back(std::size_t left) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t state = state_.load();
  if (!std::exchange(has_begun_, true)) plan(state, left);
  return gpu_ && is_planned_ && (state & hurrying) == 0;
}

bool LayeredCopy::may_enqueue(const Enqueued& capture) try {
  if (!holds_back(capture.left)) return true;
  const std::lock_guard lock(mutex_);
  if (!capture.has_gpu_come_so_far) return false;
  if (!gpu_came_at_) gpu_came_at_ = Clock::now();
  constexpr std::size_t leaf = kernels::leaf_size_bytes;
  const bool is_ahead = capture.under_way >= chunks_ahead * capture.chunk &&
                        static_cast<double>(capture.under_way * leaf) >= ahead_s * bytes_per_s();
  return !is_ahead && pacer_.turn(now(0), capture.left * leaf, capture.chunk * leaf).size_bytes != 0;
} catch (const std::exception&) {
  const std::lock_guard lock(mutex_);
  is_planned_ = false;
  return true;
}

unsigned LayeredCopy::layer_now(bool is_awaited) {
  const std::lock_guard lock(mutex_);
  if (is_awaited || is_at_rest_ || (gpu_ && is_late_)) return in_update;
  return is_in_bubble() ? in_bubbles : beside_computation;
}

void LayeredCopy::wait(std::uint32_t seen, double wait_s) {
  const auto wait_us = static_cast<std::int64_t>(1e6 * std::clamp(wait_s, 0.0, longest_wait_s));
  waiters_.fetch_add(1);
  futex_wait(state_, seen, Deadline::in_us(wait_us), FutexScope::process);
  waiters_.fetch_sub(1);
}

void LayeredCopy::copied(unsigned layer, std::size_t leaves, Clock::time_point begin, Clock::time_point end) {
  const std::uint64_t bytes = leaves * kernels::leaf_size_bytes;
  bytes_[layer].fetch_add(bytes, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  busy_s_ += seconds_of(end) - seconds_of(begin);
  busy_bytes_ += static_cast<double>(bytes);
  // Not when a thread gets its turn: while it waited, others may have taken all that was left.
  is_late_ = is_late_ || (!gpu_ && layer == in_update && is_planned_ && pacer_.has_waited());
  add_burst({begin, end});
}

// If there is no room left, the shortest pauses are left out, until half of the room is free.
void LayeredCopy::add_burst(const Burst& burst) {
  if (burst_count_ == bursts_max) {
    do {
      shortest_pause_ *= 2;
      const std::size_t count = std::exchange(burst_count_, 0);
      for (std::size_t i = 0; i < count; ++i) append(bursts_[i]);
    } while (burst_count_ > bursts_max / 2);
  }
  append(burst);
}

void LayeredCopy::append(const Burst& burst) {
  if (burst_count_ != 0 && burst.begin - bursts_[burst_count_ - 1].end < shortest_pause_)
    bursts_[burst_count_ - 1].end = std::max(bursts_[burst_count_ - 1].end, burst.end);
  else
    bursts_[burst_count_++] = burst;
}

void LayeredCopy::forget_bursts() {
  burst_count_ = 0;
  shortest_pause_ = std::chrono::microseconds(100);
}

arena::CopiedBytes LayeredCopy::copied_bytes() const {
  const auto read = [](const std::atomic<std::uint64_t>& count) { return count.load(std::memory_order_relaxed); };
  return {read(bytes_[in_bubbles]), read(bytes_[beside_computation]), read(bytes_[in_update]), read(layered_),
          read(late_)};
}

}  // namespace ckpt::client
