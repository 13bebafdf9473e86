#include "schedule/outlook.hpp"

#include <algorithm>
#include <limits>

namespace ckpt::schedule {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

}  // namespace

Outlook worse_of(const Outlook& a, const Outlook& b) {
  if (a.state != b.state) return a.state < b.state ? b : a;
  return a.idle_s < b.idle_s ? a : b;
}

RankOutlook::RankOutlook(const OutlookOptions& options, const Profile& known)
    : options_(options), profiler_(options.profiler, known), longest_s_(known.iteration_s) {}

void RankOutlook::heard(const Mark& mark) {
  const double at_s = std::max(mark.at_s, last_mark_s_);
  last_mark_s_ = at_s;
  switch (mark.kind) {
    case Mark::Kind::begin:
      has_hooks_ = true;
      if (began_) recorder_.comm_begin(at_s);
      return;
    case Mark::Kind::end:
      if (began_) recorder_.comm_end(at_s);
      ++span_;
      span_began_s_ = at_s;
      return;
    case Mark::Kind::iteration:
      return iteration_ended(at_s);
  }
}

void RankOutlook::iteration_ended(double at_s) {
  if (began_) {
    longest_s_ = std::max(0.9 * longest_s_, at_s - iteration_began_s_);
    complaint_ = recorder_.complaint();
    const Timeline timeline = recorder_.end_iteration(at_s);
    if (!recorder_.complaint().empty()) complaint_ = recorder_.complaint();
    if (is_whole_ && has_hooks_) profiler_.add(timeline);
  }
  iterations_ = std::min(iterations_ + 1, UINT32_MAX - 1);
  recorder_.begin_iteration(at_s);
  began_ = is_whole_ = true;
  span_ = 0;
  span_began_s_ = iteration_began_s_ = at_s;
}

void RankOutlook::lost_marks() { is_whole_ = false; }

bool RankOutlook::is_silent(double now_s) const {
  return now_s - last_mark_s_ > std::max(options_.silence_s, 3 * longest_s_);
}

Outlook RankOutlook::outlook(double now_s, bool busy, bool quiet) const {
  if (!has_hooks_ || is_silent(now_s)) return {NetworkState::free, infinite};
  if (busy) return {NetworkState::busy, 0};
  const bool may_learn = iterations_ <= 2 * options_.profiler.iterations;
  if (profiler_.is_learning())
    return quiet && may_learn ? Outlook{NetworkState::learning, 0} : Outlook{NetworkState::idle, infinite};
  const auto& spans = profile().spans;
  if (!is_whole_ || span_ >= spans.size()) return {NetworkState::idle, infinite};
  double ends_s = span_began_s_ + options_.usable * spans[span_].mean_s;
  if (span_ + 1 == spans.size()) ends_s += options_.usable * spans.front().mean_s;  // the next iteration begins idle
  return {NetworkState::idle, std::max(0.0, ends_s - now_s)};
}

std::optional<std::uint32_t> RankOutlook::learned() const {
  if (!profiler_.is_learning()) return std::nullopt;
  return profiler_.seen();
}

}  // namespace ckpt::schedule
