#include "schedule/deadline.hpp"

#include <algorithm>

namespace ckpt::schedule {
namespace {

constexpr std::size_t averaged = 8;    // iterations in the mean of computing_s()
constexpr std::uint32_t late_max = 3;  // so many late iterations in a row are exceptions; if more, training has changed

}  // namespace

void LearnedDeadline::observe(const Mark& mark) {
  pass(mark.at_s);
  switch (mark.kind) {
    case Mark::Kind::begin:
      ++open_;
      ++begun_;
      return;
    case Mark::Kind::end:
      if (open_ != 0) --open_;
      return;
    case Mark::Kind::iteration:
      return end_iteration();
  }
}

// Counts the time since the last mark as computing or communicating, whichever the rank did meanwhile.
void LearnedDeadline::pass(double at_s) {
  const double now_s = std::max(at_s, marked_at_s_);
  if (const auto due = due_s(); due && now_s > *due) is_late_ = true;
  const double passed_s = marked_at_s_ == 0 ? 0 : now_s - marked_at_s_;
  if (is_communicating()) {
    current_.communicating_s = std::max(current_.communicating_s, passed_s);
  } else {
    current_.computing_s = std::max(current_.computing_s, passed_s);
    current_.computed_s += passed_s;
  }
  marked_at_s_ = now_s;
}

void LearnedDeadline::end_iteration() {
  late_ = is_late_ ? late_ + 1 : 0;
  const bool is_exception = is_late_ && late_ <= late_max;
  if (skip_ == 0 && !is_exception) last_[learned_++ % kept] = current_;
  if (skip_ != 0 && !is_paused_) --skip_;
  if (is_whole_) {
    alike_ = begun_ == per_iteration_ ? alike_ + 1 : 1;
    per_iteration_ = begun_;
  }
  current_ = {};
  is_late_ = false;
  begun_ = 0;
  forgiven_s_ = 0;
  is_whole_ = !is_paused_;
}

void LearnedDeadline::disturb(std::uint32_t iterations) { skip_ = std::max(skip_, iterations); }

void LearnedDeadline::pause(double at_s) {
  pass(at_s);
  disturb(2);
  is_whole_ = false;
  is_paused_ = true;
}

void LearnedDeadline::resume(double at_s) {
  pass(at_s);
  is_paused_ = false;
}

void LearnedDeadline::lost_marks(double now_s) {
  pass(now_s);
  disturb(1);
  is_whole_ = false;
  open_ = 0;
}

void LearnedDeadline::wait_again(double now_s) {
  disturb(1);
  waits_from_s_ = std::max(waits_from_s_, now_s);
  forgiven_s_ = current_.computed_s + (is_communicating() ? 0 : std::max(0.0, now_s - marked_at_s_));
}

std::optional<std::uint32_t> LearnedDeadline::begun() const { return is_whole_ ? std::optional(begun_) : std::nullopt; }

std::optional<std::uint32_t> LearnedDeadline::per_iteration() const {
  return alike_ >= options_.iterations ? std::optional(per_iteration_) : std::nullopt;
}

double LearnedDeadline::allowed_s(double Slowest::*what) const {
  double slowest_s = 0;
  for (std::size_t i = 0; i < std::min(learned_, kept); ++i) slowest_s = std::max(slowest_s, last_[i].*what);
  return std::max(options_.floor_s, options_.factor * slowest_s);
}

std::optional<double> LearnedDeadline::due_s() const {
  if (is_paused_ || !is_whole_ || learned_ < options_.iterations) return std::nullopt;
  const double from_s = std::max(marked_at_s_, waits_from_s_);
  if (is_communicating()) return from_s + allowed_s(&Slowest::communicating_s);
  const double computed_s = std::max(0.0, current_.computed_s - forgiven_s_);
  return from_s + std::min(allowed_s(&Slowest::computing_s), allowed_s(&Slowest::computed_s) - computed_s);
}

std::optional<double> LearnedDeadline::computing_s() const {
  if (learned_ < options_.iterations) return std::nullopt;
  const std::size_t count = std::min(learned_, averaged);
  double sum_s = 0, longest_s = 0;
  for (std::size_t i = 1; i <= count; ++i) {
    const double computed_s = last_[(learned_ - i) % kept].computed_s;
    sum_s += computed_s;
    longest_s = std::max(longest_s, computed_s);
  }
  return (sum_s - longest_s) / static_cast<double>(count - 1);
}

}  // namespace ckpt::schedule
