#include "schedule/idle_forecast.hpp"

#include <algorithm>
#include <limits>

namespace ckpt::schedule {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr std::size_t communications_max = 10'000;  // in an iteration to learn from

}  // namespace

IdleForecast worse_of(const IdleForecast& a, const IdleForecast& b) {
  if (a.state != b.state) return a.state < b.state ? b : a;
  return a.idle_s < b.idle_s ? a : b;
}

RankIdleForecast::RankIdleForecast(const IdleForecastOptions& options, const Profile& known)
    : options_(options), profiler_(options.profiler, known), longest_s_(known.iteration_s) {}

void RankIdleForecast::observe(const Mark& mark) {
  const double at_s = std::max(mark.at_s, last_mark_s_);
  last_mark_s_ = at_s;
  switch (mark.kind) {
    case Mark::Kind::begin:
      has_hooks_ = true;
      ++open_;
      return comm_began(at_s);
    case Mark::Kind::end:
      if (open_ != 0) --open_;
      if (is_whole_) recorder_.comm_end(at_s);
      ++span_;
      span_began_s_ = at_s;
      return;
    case Mark::Kind::iteration:
      return iteration_ended(at_s);
  }
}

// Learns nothing from an iteration with too many communications, because the record of an iteration has a bound.
void RankIdleForecast::comm_began(double at_s) {
  if (++begun_ > communications_max) is_whole_ = false;
  if (is_whole_) recorder_.comm_begin(at_s);
}

void RankIdleForecast::iteration_ended(double at_s) {
  if (began_) longest_s_ = std::max(0.9 * longest_s_, at_s - iteration_began_s_);
  if (is_whole_) {
    const std::string unbalanced = recorder_.complaint();
    const IterationTimeline timeline = recorder_.end_iteration(at_s);
    complaint_ = recorder_.complaint().empty() ? unbalanced : recorder_.complaint();
    if (has_hooks_) profiler_.add(timeline);
  }
  recorder_.begin_iteration(at_s);
  began_ = is_whole_ = true;
  begun_ = span_ = 0;
  span_began_s_ = iteration_began_s_ = at_s;
  // A communication that is still under way also belongs to the iteration that begins, because its end comes there.
  for (std::size_t i = 0; i < open_ && is_whole_; ++i) comm_began(at_s);
}

void RankIdleForecast::lost_marks(double now_s) {
  is_whole_ = false;
  open_ = 0;
  last_mark_s_ = std::max(last_mark_s_, now_s);
}

bool RankIdleForecast::is_silent(double now_s) const {
  const double starvation_limit_s =
      longest_s_ == 0 ? options_.first_silence_s : std::max(options_.silence_s, 3 * longest_s_);
  return now_s - last_mark_s_ > starvation_limit_s;
}

IdleForecast RankIdleForecast::idle_forecast(double now_s, bool busy) const {
  if (!has_hooks_ || is_silent(now_s)) return {NetworkState::free, infinite};
  if (busy) return {NetworkState::busy, 0};
  return {NetworkState::idle, span_left_s(now_s)};
}

// Returns a span of the profile. The last span goes on in the next iteration, until the first communication there.
IdleSpan RankIdleForecast::span(std::size_t number) const {
  const auto& spans = profile().spans;
  IdleSpan span = spans[number];
  if (number + 1 == spans.size()) {
    span.mean_s += spans.front().mean_s;
    span.deviation_s += spans.front().deviation_s;
  }
  return span;
}

double RankIdleForecast::longest_idle_s() const {
  if (profile().spans.empty()) return infinite;
  double longest_s = 0;
  for (std::size_t number = 0; number < profile().spans.size(); ++number)
    longest_s = std::max(longest_s, options_.usable * span(number).mean_s);
  return longest_s;
}

double RankIdleForecast::span_left_s(double now_s) const {
  if (!is_whole_ || span_ >= profile().spans.size()) return infinite;
  const IdleSpan span = this->span(span_);
  // After this time, training does something else, such as an evaluation. The profile does not say how long that takes.
  const double passed_s = now_s - span_began_s_;
  if (passed_s > std::max(2 * span.mean_s, span.mean_s + 3 * span.deviation_s)) return infinite;
  return std::max(0.0, options_.usable * span.mean_s - passed_s);
}

std::optional<std::uint32_t> RankIdleForecast::learned() const {
  if (!profiler_.is_learning()) return std::nullopt;
  return profiler_.seen();
}

}  // namespace ckpt::schedule
