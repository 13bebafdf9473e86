// A node's verdict on the job: the leader's while it hears one, or its own if that is worse.
#include "core/node_health.hpp"

#include <algorithm>

namespace ckpt::core {

namespace {

// The leader's verdict, with its present age.
Health health_in(const Directive& directive, TimeMs age_ms) {
  Health health = directive.health;
  health.lasts_ms += age_ms;
  health.at_risk_ms += age_ms;
  return health;
}

}  // namespace

void HealthView::observe(const Directive& directive, CheckpointId highest_commit, bool is_of_now, TimeMs now) {
  const bool is_new = directive.epoch != epoch_ || directive.sequence != sequence_;
  if (is_new && is_of_now && directive.epoch != 0) {
    epoch_ = directive.epoch;
    sequence_ = directive.sequence;
    received_at_ = now;
  }
  if (!began_at_) began_at_ = now;
  const Verdict verdict = directive.decision.verdict;
  const bool has_begun = verdict == Verdict::fresh || verdict == Verdict::restore;
  const std::uint64_t incarnation = has_begun ? directive.incarnation : 0;
  if (is_of_now) {
    clock_.observe(incarnation, highest_commit, now);
  } else {
    clock_.observe_late(incarnation, highest_commit);
  }
}

Health HealthView::judge(const Directive& directive, const Config& config, const Facts& facts, TimeMs now) const {
  const TimeMs age_ms = now - received_at_.value_or(began_at_.value_or(now));
  Health health = health_in(directive, received_at_ ? age_ms : 0);
  health.allowed_ms = allowed_ms(config.unprotected_after_ms, health.pace_ms * health.capture_every);
  health.at_risk_ms = std::max(health.at_risk_ms, clock_.quiet_ms(now));
  const bool is_overdue = health.at_risk_ms > health.allowed_ms;
  // Its own pause is not the leader's fault: a node that was paused first hears the next directive.
  const bool hears_leader = received_at_ && facts.leader != no_node && age_ms <= config.node_timeout_ms;
  if (!hears_leader) {
    const auto is_distrusted = [&](NodeId node) {
      return std::find(facts.distrusted.begin(), facts.distrusted.end(), node) != facts.distrusted.end();
    };
    const bool is_own = is_distrusted(config.node);
    health.cause = is_own || is_distrusted(facts.leader) ? Cause::wrong_token : Cause::no_leader;
    health.node = is_own ? config.node : facts.leader == config.node ? no_node : facts.leader;
    health.rank = no_rank;
    health.detail.clear();
    health.standing = is_overdue ? Standing::unprotected : Standing::degraded;
    health.lasts_ms = age_ms;
  } else if (health.standing == Standing::is_protected && facts.coordination_fails) {
    health.standing = Standing::degraded;
    health.cause = Cause::coordination_fails;
    health.node = config.node;
  }
  if (is_overdue && health.standing != Standing::unprotected) {
    health.standing = Standing::unprotected;
    health.lasts_ms = health.at_risk_ms - health.allowed_ms;
    if (health.cause == Cause::none) health.cause = Cause::stalled;
  }
  return health;
}

}  // namespace ckpt::core
