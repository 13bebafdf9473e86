// The driver's part in the verdict on the job: what it sees that no message tells, whom it tells the verdict.

#include <algorithm>
#include <ctime>

#include "agent/driver.hpp"
#include "agent/process.hpp"
#include "agent/store_poller.hpp"

namespace ckpt::agent {
namespace {

using nlohmann::json;
using core::Cause;
using core::NodeId;

constexpr std::chrono::milliseconds observe_every{500};
constexpr std::chrono::seconds probe_every{3};
constexpr std::size_t probes_max = 16;  // at a time
constexpr std::int64_t settled_ms = 2000;

// "2026-11-23T14:05:09Z", so long ago.
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

std::int64_t steady_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count();
}

}  // namespace

void Driver::heed_health() {
  observe();
  const core::Health health = core_.health(steady_ms());
  if (may_be_a_wrong_token(health.cause)) probe_unauthenticated();
  notify_health(health);
}

void Driver::observe() {
  if (Clock::now() < observe_again_at_) return;
  observe_again_at_ = Clock::now() + observe_every;
  core::Observed seen;
  for (const auto& [rank, trainer] : trainers_.trainers()) {
    if (is_process_stopped(trainer.pid)) seen.stopped.push_back(rank);
    if (trainer.failed != 0) seen.failed.emplace_back(rank, trainer.failed);
  }
  seen.coordination_fails = !store_->trouble().empty();
  // Where most others refuse the token it is this node's that is wrong.
  if (distrusted_.size() > 1 && distrusted_.size() * 2 > nodes_.size())
    seen.distrusted = {id_};
  else
    seen.distrusted.assign(distrusted_.begin(), distrusted_.end());
  if (seen == observed_) return;
  observed_ = seen;
  handle(std::move(seen));
}

// A wrong token shows at the listener alone. So the leader tries the listeners of nodes that it does not hear, and
// whoever hears no leader those of all.
void Driver::probe_unauthenticated() {
  if (Clock::now() < probe_again_at_) return;
  probe_again_at_ = Clock::now() + probe_every;
  const core::NodeStatus status = core_.status();
  std::erase_if(distrusted_, [&](NodeId node) { return !nodes_.contains(node); });
  std::size_t probes = 0;
  for (const auto& [node, entry] : nodes_) {
    const auto& present = status.nodes_present;
    const bool is_present = status.is_leader && std::find(present.begin(), present.end(), node) != present.end();
    if (is_present) distrusted_.erase(node);
    if (is_present || probes == probes_max) continue;
    ++probes;
    const auto answered = [alive = parts_.queue.weak_from_this(), this, node = node](net::Reach reach) {
      const auto queue = alive.lock();
      if (!queue) return;
      queue->post([this, node, reach] {
        if (reach == net::Reach::wrong_token)
          distrusted_.insert(node);
        else
          distrusted_.erase(node);
      });
    };
    transport_->probe(node, entry.arena_id, entry.address, answered);
  }
}

void Driver::notify_health(const core::Health& health) {
  const auto name = [this](NodeId node) { return node_name(node); };
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
  news.node = health.node == core::no_node ? "" : node_name(health.node);
  news.text = explain(health, name);
  news.advice = advice(health, name);
  trainers_.notify(news);

  const bool is_news = !logged_health_ || logged_health_->standing != health.standing ||
                       logged_health_->cause != health.cause || logged_health_->node != health.node ||
                       logged_health_->rank != health.rank;
  // What goes by at once is told in no log, unless it is bad.
  const bool is_settled = health.standing == core::Standing::unprotected || health.lasts_ms >= settled_ms;
  if (!is_news || !is_settled || health.cause == Cause::beginning) return;
  logged_health_ = health;
  const std::string state = state_name(health.standing);
  if (health.standing == core::Standing::is_protected)
    parts_.log->info("the job is {}", state);
  else
    event_log_.note("the job is " + state + ": " + news.text);
}

json Driver::health_json() const {
  const core::Health health = core_.health(steady_ms());
  const core::NodeStatus status = core_.status();
  const auto name = [this](NodeId node) { return node_name(node); };
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
  return {{"job", parts_.options.job},
          {"reported_by", parts_.options.node},
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
          {"committed", committed ? json{{"incarnation", committed.incarnation()}, {"iteration", committed.iteration()}}
                                  : json(nullptr)},
          {"copies", {{"now", health.copies_now}, {"wanted", health.copies}}},
          {"parity", {{"now", health.parity_now}, {"wanted", health.parity}}},
          {"slowest", std::move(slowest)}};
}

}  // namespace ckpt::agent
