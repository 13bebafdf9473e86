#include "agent/scheduler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "agent/profile_file.hpp"
#include "net/wire.hpp"
#include "schedule/copy_pacer.hpp"
#include "schedule/plan.hpp"

namespace ckpt::agent {
namespace {

using nlohmann::json;
using schedule::IdleForecast;
using schedule::NetworkState;

constexpr double usable = 0.9;  // of an idle span
constexpr auto traced_bubble_us = static_cast<std::int64_t>(1e6 * schedule::CopyPacer::least_bubble_s);
constexpr std::size_t begun_max = 4096;     // communications of one channel at the same time
constexpr std::size_t checkpoints_max = 8;  // whose bytes are counted

schedule::IdleForecastOptions idle_forecast_options(const Options& options) {
  schedule::IdleForecastOptions idle_forecast;
  idle_forecast.profiler.iterations = options.profile_iterations;
  idle_forecast.usable = usable;
  return idle_forecast;
}

double in_seconds(std::int64_t us) { return 1e-6 * static_cast<double>(us); }
double now_s() { return seconds_of(Clock::now()); }

json spans_json(const schedule::Profile& profile) {
  json spans = json::array();
  for (const auto& span : profile.spans)
    spans.push_back(
        {{"start_ms", 1e3 * span.start_s}, {"mean_ms", 1e3 * span.mean_s}, {"deviation_ms", 1e3 * span.deviation_s}});
  return spans;
}

// Null while no profile is known.
json device_json(const schedule::DeviceProfile& profile) {
  if (profile.iterations == 0) return nullptr;
  return {{"bubbles", profile.bubbles()},
          {"bubble_ms", 1e3 * profile.bubble_s()},
          {"until_update_ms", 1e3 * profile.stretch_s},
          {"iterations", profile.iterations}};
}

json plan_json(const std::optional<schedule::PlanRequest>& request) {
  if (!request) return nullptr;
  const schedule::Plan plan = schedule::plan(*request);
  return {{"bytes", request->checkpoint_bytes},
          {"chunks", plan.chunks.size()},
          {"sent_ms", 1e3 * plan.sent_s},
          {"overrun_ms", 1e3 * plan.overrun_s},
          {"every", plan.every}};
}

json link_json(const std::optional<schedule::LinkModel>& link) {
  if (!link) return nullptr;
  return {{"startup_us", 1e6 * link->startup_s}, {"bytes_per_s", link->bytes_per_s}};
}

}  // namespace

Scheduler::Scheduler(const Options& options, std::string directory, TraceBuffer& trace)
    : options_(options),
      directory_(std::move(directory)),
      trace_(trace),
      pacer_({options.chunk_bytes, net::wire::grain_bytes, 1e-3 * static_cast<double>(options.chunk_ms)}) {}

void Scheduler::add(core::Rank rank, std::shared_ptr<const arena::Control> control) {
  const auto known = load_profile(directory_, rank);
  const std::lock_guard lock(mutex_);
  ranks_.erase(rank);
  ranks_.try_emplace(rank, std::move(control), idle_forecast_options(options_), known.value_or(schedule::Profile{}))
      .first->second.is_saved = known.has_value();
}

void Scheduler::remove(core::Rank rank) {
  const std::lock_guard lock(mutex_);
  ranks_.erase(rank);
}

std::optional<std::int64_t> Scheduler::iteration_began_us(core::Rank rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = ranks_.find(rank);
  return found == ranks_.end() ? std::nullopt : found->second.iteration_began_us;
}

void Scheduler::listen() {
  std::vector<std::pair<core::Rank, schedule::Profile>> learned;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [rank, hooked] : ranks_) {
      listen_to(rank, hooked);
      const bool is_there = !hooked.idle_forecast.learned();
      if (is_there && !hooked.is_saved) learned.emplace_back(rank, hooked.idle_forecast.profile());
      hooked.is_saved = is_there;
    }
  }
  for (const auto& [rank, profile] : learned) save_profile(directory_, rank, profile);
}

void Scheduler::listen_to(core::Rank rank, Hooked& hooked) {
  std::vector<arena::CommEvent> events;
  if (!hooked.log.read(events)) {
    hooked.idle_forecast.lost_marks(now_s());
    hooked.device.lost_marks();
    hooked.copy_began_us.reset();
    hooked.began_us.clear();
    hooked.bubble_began_us.reset();
  }
  for (const arena::CommEvent& event : events) {
    if (const auto mark = arena::mark_of(event, Clock::now())) hooked.idle_forecast.observe(*mark);
    if (const auto mark = arena::device_mark_of(event, Clock::now())) hooked.device.observe(*mark);
    note(rank, hooked, event);
  }
}

void Scheduler::note(core::Rank rank, Hooked& hooked, const arena::CommEvent& event) {
  auto& began_us = hooked.began_us[event.channel];
  switch (event.kind) {
    case arena::CommKind::begin:
      hooked.has_reported = true;
      if (began_us.size() < begun_max) began_us.push_back(event.at_us);
      return;
    case arena::CommKind::end:
      if (began_us.empty()) return;
      trace_.add({TraceEvent::Kind::communication, began_us.front(), event.at_us, rank, {}, 0, {}, 0});
      began_us.pop_front();
      return;
    case arena::CommKind::iteration:
      hooked.iteration_began_us = event.at_us;
      trace_.add({TraceEvent::Kind::iteration, event.at_us, event.at_us, rank, {}, 0, {}, 0});
      return;
    case arena::CommKind::bubble_begin:
      hooked.bubble_began_us = event.at_us;
      return;
    case arena::CommKind::bubble_end:
      if (hooked.bubble_began_us && event.at_us - *hooked.bubble_began_us >= traced_bubble_us)
        trace_.add({TraceEvent::Kind::bubble, *hooked.bubble_began_us, event.at_us, rank, {}, 0, {}, 0});
      hooked.bubble_began_us.reset();
      return;
    case arena::CommKind::copy:
      if (event.channel == 0) hooked.copy_began_us = event.at_us;
      if (event.channel == 1 && hooked.copy_began_us) {
        trace_.add({TraceEvent::Kind::copy, *hooked.copy_began_us, event.at_us, rank, {}, 0, {}, 0});
        hooked.copy_began_us.reset();
      }
      return;
    case arena::CommKind::update:
      return;
  }
}

IdleForecast Scheduler::idle_forecast(double at_s) const {
  IdleForecast worst{NetworkState::free, std::numeric_limits<double>::infinity()};
  for (const auto& [rank, hooked] : ranks_)
    worst = schedule::worse_of(worst, hooked.idle_forecast.idle_forecast(at_s, hooked.log.is_busy()));
  return worst;
}

std::uint64_t Scheduler::begun() const {
  std::uint64_t total = 0;
  for (const auto& [rank, hooked] : ranks_) total += hooked.log.begun_total();
  return total;
}

double Scheduler::iteration_s() const {
  double slowest_s = 0;
  for (const auto& [rank, hooked] : ranks_) slowest_s = std::max(slowest_s, hooked.idle_forecast.iteration_s());
  return slowest_s;
}

std::size_t Scheduler::allow(std::size_t left_bytes, std::size_t under_way) {
  if (options_.schedule == SendMode::immediate) return left_bytes;
  const std::lock_guard lock(mutex_);
  for (auto& [rank, hooked] : ranks_) listen_to(rank, hooked);
  const double at_s = now_s();
  const IdleForecast seen = idle_forecast(at_s);
  const std::size_t bytes = pacer_.allow(at_s, left_bytes, under_way, seen, iteration_s());
  if (bytes != 0) {
    undisturbed_since_.reset();
    const bool says_something = seen.state == NetworkState::idle || !pacer_.link();
    if (under_way == 0 && says_something) undisturbed_since_ = begun();
  }
  return bytes;
}

void Scheduler::received(const net::SentChunk& chunk) {
  const std::int64_t begin_us = microseconds(chunk.begin), end_us = microseconds(chunk.end);
  trace_.add({TraceEvent::Kind::chunk, begin_us, end_us, 0, CheckpointId::from_word(chunk.piece.checkpoint), chunk.to,
              chunk.piece.shard, chunk.size_bytes});
  const std::lock_guard lock(mutex_);
  ++chunks_;
  sent_bytes_[chunk.piece.checkpoint] += chunk.size_bytes;
  if (sent_bytes_.size() > checkpoints_max) sent_bytes_.erase(sent_bytes_.begin());
  // A chunk that met a communication of training says little about the link.
  const bool undisturbed = undisturbed_since_ && *undisturbed_since_ == begun();
  if (chunk.alone) pacer_.received(chunk.size_bytes, in_seconds(end_us - begin_us), undisturbed);
}

std::int64_t Scheduler::ask_again_us() const {
  const std::lock_guard lock(mutex_);
  // A small part of an iteration late at most, because asking takes time from training, too.
  return std::clamp<std::int64_t>(std::llround(1e6 * iteration_s() / 250), 100, 4'000);
}

json Scheduler::status() const {
  json ranks = json::array(), link;
  bool is_learning = false;
  std::uint64_t chunks = 0, forced = 0;
  std::optional<schedule::PlanRequest> request;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, hooked] : ranks_) {
      if (!hooked.has_reported) continue;
      is_learning = is_learning || hooked.idle_forecast.learned();
      ranks.push_back(rank_json(rank, hooked));
    }
    link = link_json(pacer_.link());
    chunks = chunks_;
    forced = pacer_.forced();
    request = plan_request();
  }
  if (ranks.empty()) return nullptr;
  const char* state = options_.schedule == SendMode::immediate ? "at once" : is_learning ? "learning" : "idle spans";
  return {{"state", state},   {"ranks", std::move(ranks)}, {"link", std::move(link)}, {"plan", plan_json(request)},
          {"chunks", chunks}, {"forced", forced}};
}

json Scheduler::rank_json(core::Rank rank, const Hooked& hooked) const {
  const auto learned = hooked.idle_forecast.learned();
  const schedule::Profile& profile = hooked.idle_forecast.profile();
  return {{"rank", rank},
          {"state", learned ? "learning" : "learned"},
          {"iterations", learned.value_or(profile.iterations)},
          {"iterations_wanted", options_.profile_iterations},
          {"iteration_ms", 1e3 * profile.iteration_s},
          {"idle_ms", 1e3 * profile.idle_s()},
          {"spans", spans_json(profile)},
          {"normalized_deviation", profile.normalized_deviation},
          {"relearned", hooked.idle_forecast.relearned()},
          {"device", device_json(hooked.device.profile())},
          {"complaint", hooked.idle_forecast.complaint()}};
}

// The plan for the last checkpoint's bytes, in the spans of the rank that leaves the least idle time.
std::optional<schedule::PlanRequest> Scheduler::plan_request() const {
  const schedule::Profile* tightest = nullptr;
  for (const auto& [rank, hooked] : ranks_) {
    const schedule::Profile& profile = hooked.idle_forecast.profile();
    if (profile.iterations != 0 && (tightest == nullptr || profile.idle_s() < tightest->idle_s())) tightest = &profile;
  }
  const auto link = pacer_.link();
  if (tightest == nullptr || !link || sent_bytes_.size() < 2) return std::nullopt;
  schedule::PlanRequest request;
  for (const auto& span : tightest->spans) request.spans_s.push_back(span.mean_s);
  request.checkpoint_bytes = std::prev(sent_bytes_.end(), 2)->second;  // the newest may still be under way
  request.least_bytes = std::min<std::uint64_t>(net::wire::grain_bytes, pacer_.chunk_bytes());
  request.reserved_bytes = pacer_.chunk_bytes() * options_.sub_buffers;
  request.buffers = options_.sub_buffers;
  request.usable = usable;
  request.link = *link;
  return request;
}

}  // namespace ckpt::agent
