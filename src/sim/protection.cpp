#include "sim/protection.hpp"

#include <algorithm>

#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {
constexpr TimeMs verdict_look_every_ms = 100;
constexpr TimeMs iterations_allowed = 4;  // how many iterations a commit may take: docs/protection.md
// Within this time, a node learns of a commit, and its own news arrives.
constexpr TimeMs verdict_told_within_ms = 3500;
}  // namespace

void Protection::after_step() {
  const TimeMs now = world_.event_queue.now();
  if (now < next_look_) return;
  next_look_ = now + verdict_look_every_ms;
  follow(now);
  for (const auto& [id, machine] : world_.machines) {
    if (machine.agent && !machine.agent->is_frozen()) judge(machine, now);
  }
}

void Protection::follow(TimeMs now) {
  const IncarnationRecord& record = world_.store.incarnation_record().record;
  const Verdict verdict = record.decision.verdict;
  const std::pair incarnation(record.incarnation, verdict == Verdict::fresh || verdict == Verdict::restore);
  const std::uint64_t commits = world_.invariants.tally().commits;
  // As long as the leader has told nobody of the incarnation, the leader may not know either that it is decided.
  if (commits != commits_ || incarnation != incarnation_ || !world_.decision_is_notified()) quiet_since_ = now;
  commits_ = commits;
  incarnation_ = incarnation;
  longest_iteration_ms_ = std::max(longest_iteration_ms_, now - world_.launcher.progress_at());
}

void Protection::judge(const Machine& machine, TimeMs now) const {
  const TimeMs quiet_ms = now - quiet_since_;
  const TimeMs least_ms = world_.settings.core.unprotected_after_ms + verdict_told_within_ms;
  if (quiet_ms <= least_ms) return;
  const Health health = machine.agent->node().health(now + machine.clock_offset_ms);
  // A node allows as much time as its leader says. The leader never says more than the slowest iteration asks for.
  const TimeMs every = world_.settings.can_halt() ? world_.settings.core.capture_every : 1;
  const TimeMs allowed_ms =
      std::min(health.allowed_ms, iterations_allowed * (every * longest_iteration_ms_ + verdict_told_within_ms));
  if (health.standing != Standing::is_protected || quiet_ms <= std::max(allowed_ms + verdict_told_within_ms, least_ms))
    return;
  throw Violation{
      "I7", text("node ", machine.id, " says that the job is protected, although nothing was committed for ", quiet_ms,
                 " ms, and ", health.allowed_ms, " ms are allowed")};
}

}  // namespace ckpt::sim
