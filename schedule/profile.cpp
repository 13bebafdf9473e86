#include "schedule/profile.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>

namespace ckpt::schedule {

namespace {

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// When each idle span begins, since the iteration began.
std::vector<double> idle_starts_s(const IterationTimeline& timeline) {
  std::vector<double> starts{0};
  double end_s = 0;
  for (const Busy& busy : timeline.busy) starts.push_back(end_s = std::max(end_s, busy.end_s));
  return starts;
}

double idle_s(const IterationTimeline& timeline) { return sum(idle_spans_s(timeline)); }
double length_s(const IterationTimeline& timeline) { return timeline.length_s; }

double median(const std::vector<IterationTimeline>& timelines, double (*of)(const IterationTimeline&)) {
  std::vector<double> values;
  for (const IterationTimeline& timeline : timelines) values.push_back(of(timeline));
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double mean_length_s(const std::vector<IterationTimeline>& timelines) {
  double total = 0;
  for (const IterationTimeline& timeline : timelines) total += timeline.length_s;
  return total / static_cast<double>(timelines.size());
}

bool differs(double now, double before, double share) {
  return std::abs(now - before) > share * std::max(std::abs(before), 1e-9);
}

}  // namespace

std::vector<double> idle_spans_s(const IterationTimeline& timeline) {
  std::vector<double> spans;
  double end_s = 0;
  for (const Busy& busy : timeline.busy) {
    spans.push_back(std::max(0.0, busy.begin_s - end_s));
    end_s = std::max(end_s, busy.end_s);
  }
  spans.push_back(std::max(0.0, timeline.length_s - end_s));
  return spans;
}

// ---- Recorder ----

void Recorder::begin_iteration(double now_s) {
  began_s_ = now_s;
  busy_.clear();
  open_ = 0;
  complaint_.clear();
}

void Recorder::comm_begin(double now_s) { busy_.push_back({now_s - began_s_, -1}); }

void Recorder::comm_end(double now_s) {
  if (open_ == busy_.size()) {
    complaint_ = "comm_end() was called without a comm_begin() before it; call them in pairs around each collective";
    return;
  }
  busy_[open_++].end_s = now_s - began_s_;
}

IterationTimeline Recorder::end_iteration(double now_s) {
  IterationTimeline timeline{now_s - began_s_, std::move(busy_)};
  if (open_ < timeline.busy.size()) {
    complaint_ = std::to_string(timeline.busy.size() - open_) +
                 " collectives had not ended when their iteration did; call comm_end() when each is complete";
  }
  for (; open_ < timeline.busy.size(); ++open_) timeline.busy[open_].end_s = timeline.length_s;
  busy_.clear();
  open_ = 0;
  return timeline;
}

// ---- Profiler ----

double Profile::idle_s() const {
  return std::accumulate(spans.begin(), spans.end(), 0.0,
                         [](double total, const IdleSpan& span) { return total + span.mean_s; });
}

Profiler::Profiler(const ProfilerOptions& options, Profile known) : options_(options), profile_(std::move(known)) {
  if (options.iterations == 0) throw std::invalid_argument("iterations is 0: a profile needs at least 1");
  if (options.window == 0) throw std::invalid_argument("window is 0: a profile's window needs at least 1 iteration");
  if (!(options.drift > 0) || !std::isfinite(options.drift))
    throw std::invalid_argument("drift is " + std::to_string(options.drift) + ": set it to a finite number above 0");
}

void Profiler::add(const IterationTimeline& timeline) {
  if (!is_learning() && has_drifted(timeline)) start_over();
  if (!is_learning()) return;
  // A profile is learned from iterations of one pattern. The first iteration often has a pattern of its own, because
  // training connects in it. Another pattern that appears as often as the first one replaces it.
  if (!seen_.empty() && seen_.front().busy.size() != timeline.busy.size()) {
    if (++strange_ < seen_.size()) return;
    seen_.clear();
    strange_ = 0;
  }
  seen_.push_back(timeline);
  if (seen_.size() == options_.iterations) learn();
}

void Profiler::learn() {
  const double longest_s = 2 * median(seen_, length_s);
  std::erase_if(seen_, [&](const IterationTimeline& timeline) { return timeline.length_s > longest_s; });
  const auto count = static_cast<double>(seen_.size());
  Profile learned;
  learned.spans.resize(seen_.front().busy.size() + 1);
  for (const IterationTimeline& timeline : seen_) {
    const auto spans = idle_spans_s(timeline);
    const auto starts = idle_starts_s(timeline);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      learned.spans[i].mean_s += spans[i] / count;
      learned.spans[i].start_s += starts[i] / count;
    }
  }
  for (const IterationTimeline& timeline : seen_) {
    const auto spans = idle_spans_s(timeline);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const double off = spans[i] - learned.spans[i].mean_s;
      learned.spans[i].deviation_s += off * off / count;
    }
  }
  double deviation_s = 0;
  for (IdleSpan& span : learned.spans) deviation_s += span.deviation_s = std::sqrt(span.deviation_s);
  const double idle_s = learned.idle_s();
  learned.normalized_deviation = idle_s > 0 ? deviation_s / idle_s : 0;
  learned.iteration_s = mean_length_s(seen_);
  learned.iterations = static_cast<std::uint32_t>(seen_.size());
  profile_ = std::move(learned);
  seen_.clear();
  strange_ = 0;
}

bool Profiler::has_drifted(const IterationTimeline& timeline) {
  strange_ = timeline.busy.size() + 1 == profile_.spans.size() ? 0 : strange_ + 1;
  if (strange_ != 0) return strange_ == options_.window;  // fewer may be an evaluation
  recent_.push_back(timeline);
  if (recent_.size() < options_.window) return false;
  const bool has_changed = differs(median(recent_, idle_s), profile_.idle_s(), options_.drift) ||
                           differs(median(recent_, length_s), profile_.iteration_s, options_.drift);
  recent_.clear();
  return has_changed;
}

void Profiler::start_over() {
  profile_ = {};
  seen_.clear();
  recent_.clear();
  strange_ = 0;
  ++relearned_;
}

}  // namespace ckpt::schedule
