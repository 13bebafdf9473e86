#include "sim/phase.hpp"

#include <algorithm>

#include "sim/world.hpp"

namespace ckpt::sim {

namespace {

bool is_electing(World& world) {
  const auto& record = world.store.leader().record;
  const Agent* leader = world.agent_on(record.node);
  return leader == nullptr || leader->is_frozen();
}

// True if some node has not heard of the present leader: its newest epoch is older than that of the leader's record.
bool is_gathering(World& world) {
  const std::uint64_t epoch = world.store.leader().record.epoch;
  return std::any_of(world.machines.begin(), world.machines.end(),
                     [&](const auto& entry) { return entry.second.agent && entry.second.arena.epoch < epoch; });
}

}  // namespace

Phases current_phases(World& world) {
  Phases phases;
  const auto set = [&](Phase phase, bool holds) { phases.set(static_cast<std::size_t>(phase), holds); };
  const Launcher& launcher = world.launcher;
  const auto trainers = launcher.trainers();
  const bool is_up = trainers.size() == launcher.ranks();
  const bool all_asked = launcher.everyone_has_asked();
  const bool all_train = launcher.everyone_trains();
  const bool decided = world.store.incarnation_record().record.decision.verdict != core::Verdict::undecided;

  set(Phase::down, !is_up);
  set(Phase::hello, is_up && !all_asked);
  set(Phase::deciding, all_asked && !all_train && !decided);
  set(Phase::restoring, all_asked && !all_train && decided);
  set(Phase::capturing,
      std::any_of(trainers.begin(), trainers.end(), [](const Trainer* trainer) { return trainer->is_capturing(); }));
  set(Phase::committing, all_train && world.invariants.awaits_commit());
  set(Phase::electing, is_electing(world));
  set(Phase::gathering, !is_electing(world) && is_gathering(world));
  set(Phase::announcing, all_asked && decided && !world.decision_is_notified());
  for (const auto& [id, transfer] : world.transfers.active()) {
    const bool is_own = transfer.order.piece.checkpoint.incarnation() == world.invariants.history().incarnation();
    set(is_own ? Phase::replicating : Phase::reprotecting, true);
    if (transfer.base) set(Phase::repeating, true);
    if (transfer.order.source != core::parity_node) continue;
    if (is_own && transfer.order.piece.is_parity()) set(Phase::encoding, true);
    if (!transfer.order.piece.is_parity()) set(Phase::decoding, true);
  }
  set(Phase::replacing, !world.store.incarnation_record().record.replacements.empty());
  set(Phase::halting, world.settings.can_halt() && world.halt_check.is_under_way());
  set(Phase::rejoining, std::any_of(trainers.begin(), trainers.end(), [](const Trainer* trainer) {
        return trainer->has_rejoined() && trainer->stage() != Stage::training;
      }));
  const auto& history = world.invariants.history();
  const core::Decision& decision = world.store.incarnation_record().record.decision;
  set(Phase::resizing, all_asked && !all_train && decision.verdict == core::Verdict::restore &&
                           history.world_size(decision.checkpoint) != launcher.ranks());
  if (all_train && phases.none()) set(Phase::idle, true);
  return phases;
}

}  // namespace ckpt::sim
