// How faults strike ranks in runs in which a suspicion halts the job. Each first makes a leader suspect a rank.
#include <utility>

#include "sim/faults.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

namespace {
constexpr TimeMs rank_look_ms = 20;
}

// Calls `action` once `is_so`, or at the latest after that time.
void Faults::once(std::function<bool()> is_so, TimeMs at_most_ms, std::function<void()> action) {
  if (is_so() || at_most_ms <= 0) return action();
  world_.event_queue.after(rank_look_ms, [this, is_so = std::move(is_so), at_most_ms, action = std::move(action)] {
    once(is_so, at_most_ms - rank_look_ms, action);
  });
}

void Faults::wake_in_halt(const Trainer& trainer, TimeMs at_most_ms) {
  const TimeMs late_ms = world_.random.between(0, 400);
  ++unmended_;
  once([this] { return world_.halt_check.is_halted(); }, at_most_ms,
       [this, instance = trainer.instance, late_ms] {
         world_.event_queue.after(late_ms, [this, instance] {
           --unmended_;
           if (Trainer* awake = world_.trainer(instance)) awake->wake();
         });
       });
}

// Some rank dies while it is captured late.
void Faults::tear_late_capture(TimeMs at_most_ms) {
  const auto capturing = [this] {
    auto found = world_.living_trainers();
    std::erase_if(found, [](const Trainer* trainer) { return !trainer->captures_late(); });
    return found;
  };
  once([capturing] { return !capturing().empty(); }, at_most_ms,
       [this, capturing] {
         const auto found = capturing();
         if (!found.empty()) world_.random.pick(found)->die();
       });
}

void Faults::lose_halt(TimeMs at_most_ms) {
  const auto is_made = [this] {
    const Machine* leader = leader_machine();
    return leader != nullptr && leader->agent->node().status().halt.incarnation != 0;
  };
  once(is_made, at_most_ms, [this, is_made] {
    if (!is_made()) return;
    Network::NetworkConditions conditions;
    conditions.loss = static_cast<unsigned>(world_.random.between(300, 900));
    world_.network.set_conditions(conditions);
    mend_after(500, 5000, [this] { world_.network.set_conditions({}); });
  });
}

bool Faults::strike_halted_rank(Fault fault, Trainer& trainer, TimeMs long_ms) {
  switch (fault) {
    case Fault::rank_dies_in_update:
      trainer.die_in_next_update();
      mend_after(long_ms, long_ms, [] {});
      return true;
    case Fault::rank_thaws:
      trainer.freeze();
      wake_in_halt(trainer, long_ms);
      return true;
    case Fault::false_suspicion:
      trainer.spin();
      wake_in_halt(trainer, long_ms);
      return true;
    case Fault::late_capture_torn:
      trainer.spin();
      halt(trainer, long_ms, long_ms);
      tear_late_capture(long_ms);
      return true;
    case Fault::halt_lost:
      world_.random.chance(500) ? trainer.die() : trainer.freeze();
      halt(trainer, long_ms, long_ms);
      lose_halt(long_ms);
      return true;
    default:
      return false;
  }
}

bool Faults::strike_rejoining_rank(Fault fault, Trainer& trainer, TimeMs long_ms) {
  auto others = world_.launcher.trainers();
  std::erase_if(others, [&](const Trainer* each) { return each == &trainer || each->is_halted(); });
  if (others.empty()) return false;
  if (fault == Fault::newcomer_dies) world_.launcher.next_dies_in_restore();
  if (fault == Fault::never_rejoins) trainer.never_rejoin();
  if (fault == Fault::survivor_spins) trainer.spin();
  world_.random.pick(others)->die();
  mend_after(long_ms, long_ms, [this, instance = trainer.instance] {
    if (Trainer* survivor = world_.trainer(instance); survivor != nullptr && survivor->is_halted()) survivor->wake();
  });
  return true;
}

}  // namespace ckpt::sim
