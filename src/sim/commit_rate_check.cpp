#include "sim/commit_rate_check.hpp"

#include <algorithm>

#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {
constexpr TimeMs look_every_ms = 100;
constexpr TimeMs iterations_max = 16;
// Time for reports, for what the core decides only now and then, and for messages that are lost or delayed.
constexpr TimeMs notified_within_ms = 8000;
}  // namespace

void CommitRateCheck::after_step() {
  const TimeMs now = world_.event_queue.now();
  if (now < next_look_) return;
  next_look_ = now + look_every_ms;
  const std::uint64_t commits = world_.invariants.tally().commits;
  if (commits != commits_ || !is_well()) {
    commits_ = commits;
    waits_since_ = now;
    return;
  }
  const TimeMs waited_ms = now - waits_since_;
  slowest_ms_ = std::max(slowest_ms_, waited_ms);
  if (waited_ms > bound_ms()) {
    throw Violation{"I6", text("nothing was committed for ", waited_ms, " ms, which is ",
                               waited_ms / world_.settings.iteration_ms, " iterations, although all was well")};
  }
}

// A checkpoint must be captured, copied and protected. At most two are under way at a time.
TimeMs CommitRateCheck::bound_ms() const {
  const Settings& settings = world_.settings;
  const TimeMs transfers = settings.core.protection.has_parity() ? 4 : 2;
  const TimeMs every = settings.can_halt() ? settings.core.capture_every : 1;
  return iterations_max * every * (settings.iteration_ms + settings.update_ms) +
         2 * transfers * 2 * settings.transfer_ms + notified_within_ms;
}

// All is well if every rank trains on a node that is as it was when the incarnation began, no fault is at work, and the
// network can carry the traffic.
bool CommitRateCheck::is_well() const {
  const TimeMs now = world_.event_queue.now();
  if (world_.halt_check.is_halted()) return false;
  if (!world_.faults.is_mended() || world_.faults.struck_at() >= waits_since_) return false;
  if (!world_.launcher.everyone_trains() || world_.launcher.is_between_launches() || world_.awaits_replacement())
    return false;
  const IncarnationRecord& incarnation_record = world_.store.incarnation_record().record;
  if (!incarnation_record.replacements.empty() || world_.store.is_out() || !world_.storage.is_calm(0)) return false;
  for (const auto& [id, machine] : world_.machines) {
    if (machine.agent && (machine.agent->is_frozen() || machine.memory_full_until > now)) return false;
  }
  const auto assignment_table = world_.store.assignment_table(incarnation_record.assignments);
  for (const Member& member : assignment_table.members()) {
    const Machine& machine = world_.machines.at(member.node);
    if (!machine.agent || machine.arena.id != member.arena_id) return false;
  }
  return std::none_of(world_.transfers.active().begin(), world_.transfers.active().end(),
                      [](const auto& entry) { return entry.second.is_slow; });
}

}  // namespace ckpt::sim
