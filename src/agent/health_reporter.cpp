#include "agent/health_reporter.hpp"

#include <algorithm>
#include <ctime>

#include "agent/process.hpp"

namespace ckpt::agent {
namespace {

using core::Cause;
using core::NodeId;
using nlohmann::json;

constexpr std::chrono::milliseconds observe_every{500};
constexpr std::int64_t settled_ms = 2000;

// The time `ago` before now, as "2026-11-23T14:05:09Z".
std::string moment_before(std::int64_t ms) {
  const std::time_t moment = std::time(nullptr) - ms / 1000;
  std::tm utc{};
  ::gmtime_r(&moment, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

bool may_be_a_wrong_token(Cause cause) {
  return cause == Cause::waits_for_ranks || cause == Cause::waits_for_nodes || cause == Cause::node_silent ||
         cause == Cause::no_leader || cause == Cause::wrong_token || cause == Cause::no_trainers;
}

}  // namespace

void HealthReporter::tick(bool coordination_fails) {
  log_alarm();
  log_suspicion();
  log_halt();
  observe(coordination_fails);
  const core::Health health = deps_.core.health(core_now_ms());
  if (may_be_a_wrong_token(health.cause)) deps_.members.probe_silent(Clock::now());
  notify(health);
}

// The status shows an alarm only while the alarm lasts. The log shows it to people who look later.
void HealthReporter::log_alarm() {
  std::string alarm = deps_.core.status().alarm;
  if (alarm == logged_alarm_) return;
  logged_alarm_ = std::move(alarm);
  if (!logged_alarm_.empty()) deps_.event_log.note(logged_alarm_);
}

// Logs each change of the suspicion once. So the times in the sentence are those of the change.
void HealthReporter::log_suspicion() {
  core::Suspicion suspicion = deps_.core.status().suspicion;
  if (suspicion.says_the_same(logged_suspicion_)) return;
  suspicion_text_ = explain(suspicion, [this](NodeId node) { return deps_.peers.name(node); });
  if (suspicion_text_.empty())
    deps_.log->info("no rank holds training up any more");
  else
    deps_.event_log.note("suspicion: " + suspicion_text_);
  logged_suspicion_ = std::move(suspicion);
}

// At its begin, once its iteration is decided, and at its end.
void HealthReporter::log_halt() {
  core::Halt halt = deps_.core.status().halt;
  halt_text_ = explain(halt, [this](NodeId node) { return deps_.peers.name(node); });
  const bool is_news = halt.number != logged_halt_.number || halt.incarnation != logged_halt_.incarnation ||
                       halt.iteration != logged_halt_.iteration || halt.is_over != logged_halt_.is_over;
  if (!is_news) return;
  if (halt_text_.empty())
    deps_.log->info("the halt is over, because another incarnation has begun");
  else
    deps_.event_log.note("halt: " + halt_text_);
  logged_halt_ = std::move(halt);
}

nlohmann::json HealthReporter::halt() const {
  const core::Halt halt = deps_.core.status().halt;
  if (halt.incarnation == 0) return nullptr;
  const auto name = [this](NodeId node) { return deps_.peers.name(node); };
  json culprits = json::array(), others = json::array();
  for (const core::Culprit& each : halt.culprits) culprits.push_back(each.standing.rank);
  for (const core::Unfrozen& each : halt.others)
    others.push_back({{"rank", each.rank},
                      {"node", each.node == core::no_node ? json(nullptr) : json(name(each.node))},
                      {"state", freeze_name(each.freeze)},
                      {"iteration", each.freeze == core::Freeze::none ? json(nullptr) : json(each.iteration)}});
  return {{"text", explain(halt, name)},
          {"incarnation", halt.incarnation},
          {"iteration", halt.iteration ? json(*halt.iteration) : json(nullptr)},
          {"culprits", std::move(culprits)},
          {"ranks", halt.ranks},
          {"captured", halt.captured},
          {"others", std::move(others)},
          {"over", halt.is_over}};
}

nlohmann::json HealthReporter::suspicion() const {
  const core::Suspicion suspicion = deps_.core.status().suspicion;
  if (suspicion.culprits.empty()) return nullptr;
  const auto name = [this](NodeId node) { return deps_.peers.name(node); };
  json culprits = json::array();
  for (const auto& [node, standing] : suspicion.culprits)
    culprits.push_back({{"rank", standing.rank},
                        {"node", name(node)},
                        {"trouble", trouble_name(standing.trouble)},
                        {"process", standing.process == 0 ? "" : std::string(1, standing.process)},
                        {"iteration", standing.iteration + 1},
                        {"communications", standing.begun ? json(*standing.begun) : json(nullptr)},
                        {"since_ms", standing.still_ms},
                        {"computing_ms", standing.computing_ms}});
  json awaited = nullptr;
  if (suspicion.waiting != 0)
    awaited = {{"iteration", suspicion.iteration + 1},
               {"communication", suspicion.communication != 0 ? json(suspicion.communication) : json(nullptr)},
               {"ranks_waiting", suspicion.waiting}};
  return {{"text", explain(suspicion, name)},
          {"culprits", std::move(culprits)},
          {"count", suspicion.count},
          {"everybody_waits", suspicion.is_everybody},
          {"awaited", std::move(awaited)}};
}

void HealthReporter::observe(bool coordination_fails) {
  if (Clock::now() < observe_again_at_) return;
  observe_again_at_ = Clock::now() + observe_every;
  core::Observed seen;
  for (const auto& [rank, trainer] : deps_.trainers.trainers()) {
    if (is_process_stopped(trainer.pid)) seen.stopped.push_back(rank);
    if (trainer.failed != 0) seen.failed.emplace_back(rank, trainer.failed);
  }
  seen.coordination_fails = coordination_fails;
  // If most others refuse the token, this node's token is the wrong one.
  const auto& distrusted = deps_.members.distrusted();
  if (distrusted.size() > 1 && distrusted.size() * 2 > deps_.peers.all().size())
    seen.distrusted = {deps_.peers.own_node()};
  else
    seen.distrusted.assign(distrusted.begin(), distrusted.end());
  if (seen == observed_) return;
  observed_ = seen;
  deps_.events.handle(std::move(seen));
}

void HealthReporter::notify(const core::Health& health) {
  const auto name = [this](NodeId node) { return deps_.peers.name(node); };
  arena::HealthNews news;
  news.state = static_cast<std::uint8_t>(health.standing);
  news.rank = health.rank;
  news.lasts_ms = health.lasts_ms;
  news.at_risk_ms = health.at_risk_ms;
  news.at_risk_iterations = health.iterations_at_risk;
  news.allowed_ms = health.allowed_ms;
  news.committed = health.committed;
  news.copies_now = health.copies_now;
  news.copies = health.copies;
  news.parity_now = health.parity_now;
  news.parity = health.parity;
  news.reason = cause_name(health.cause);
  news.node = health.node == core::no_node ? "" : deps_.peers.name(health.node);
  news.text = explain(health, name);
  news.advice = advice(health, name);
  news.suspicion = halt_text_.empty() ? suspicion_text_ : halt_text_;
  deps_.trainers.notify(news);

  const bool is_news = !logged_health_ || logged_health_->standing != health.standing ||
                       logged_health_->cause != health.cause || logged_health_->node != health.node ||
                       logged_health_->rank != health.rank;
  // A change that ends at once is not logged, unless it is bad.
  const bool is_settled = health.standing == core::Standing::unprotected || health.lasts_ms >= settled_ms;
  if (!is_news || !is_settled || health.cause == Cause::beginning) return;
  logged_health_ = health;
  const std::string state = state_name(health.standing);
  if (health.standing == core::Standing::is_protected)
    deps_.log->info("the job is {}", state);
  else
    deps_.event_log.note("the job is " + state + ": " + news.text);
}

nlohmann::json HealthReporter::report() const {
  const core::Health health = deps_.core.health(core_now_ms());
  const core::NodeStatus status = deps_.core.status();
  const auto name = [this](NodeId node) { return deps_.peers.name(node); };
  const auto node_or_null = [&](NodeId node) { return node == core::no_node ? json(nullptr) : json(name(node)); };
  const CheckpointId committed = health.committed;
  json held_up_by = nullptr;
  if (health.node != core::no_node || health.rank != core::no_rank)
    held_up_by = {{"node", node_or_null(health.node)},
                  {"rank", health.rank == core::no_rank ? json(nullptr) : json(health.rank)}};
  json slowest = nullptr;
  if (health.slowest_node != core::no_node)
    slowest = {{"node", name(health.slowest_node)},
               {"part", health.slowest_is_capture ? "capture" : "copies"},
               {"ms", health.slowest_ms}};
  return {{"job", deps_.options.job},
          {"reported_by", deps_.options.node},
          {"leader", node_or_null(status.leader)},
          {"ranks_here", status.ranks.size()},
          {"state", state_name(health.standing)},
          {"since", moment_before(health.lasts_ms)},
          {"since_ms", health.lasts_ms},
          {"reason", cause_name(health.cause)},
          {"text", explain(health, name)},
          {"advice", advice(health, name)},
          {"held_up_by", std::move(held_up_by)},
          {"at_risk_ms", health.at_risk_ms},
          {"at_risk_iterations", health.iterations_at_risk},
          {"allowed_ms", health.allowed_ms},
          {"iteration_ms", health.pace_ms},
          {"capture_every", health.capture_every},
          {"committed", committed ? json{{"incarnation", committed.incarnation()}, {"iteration", committed.iteration()}}
                                  : json(nullptr)},
          {"copies", {{"now", health.copies_now}, {"wanted", health.copies}}},
          {"parity", {{"now", health.parity_now}, {"wanted", health.parity}}},
          {"slowest", std::move(slowest)}};
}

}  // namespace ckpt::agent
