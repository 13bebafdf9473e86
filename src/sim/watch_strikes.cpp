// How faults strike single ranks in runs in which agents watch the ranks.
#include "sim/faults.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

void Faults::halt(Trainer& trainer, TimeMs low_ms, TimeMs high_ms) {
  mend_after(low_ms, high_ms, [this, instance = trainer.instance] {
    if (Trainer* halted = world_.trainer(instance)) halted->wake();
  });
}

bool Faults::strike_rank(Fault fault) {
  const auto trainers = world_.launcher.trainers();
  if (world_.launcher.is_between_launches() || !world_.launcher.everyone_trains()) return false;
  if (!world_.watch_check.all_are_known() || world_.communications.hangs()) return false;
  Trainer& trainer = *world_.random.pick(trainers);
  if (trainer.is_halted()) return false;
  const TimeMs long_ms = world_.random.between(8000, 20000);
  const bool is_of_rejoining = static_cast<std::size_t>(fault) >= first_rejoining_fault;
  // A launcher that lets ranks rejoin mostly notices at once.
  const bool looks_away = fault != Fault::rank_slow && !(world_.settings.can_rejoin() && world_.random.chance(700));
  if (looks_away && !is_of_rejoining) world_.launcher.look_away(long_ms);
  if (is_of_rejoining) return strike_rejoining_rank(fault, trainer, long_ms);
  if (static_cast<std::size_t>(fault) >= first_halting_fault) return strike_halted_rank(fault, trainer, long_ms);
  switch (fault) {
    case Fault::rank_dies:
      trainer.die();
      mend_after(long_ms, long_ms, [] {});
      break;
    case Fault::rank_stops:
      trainer.freeze();
      halt(trainer, 300, long_ms);
      break;
    case Fault::rank_spins:
      trainer.spin();
      halt(trainer, 300, long_ms);
      break;
    case Fault::communication_hangs:
      world_.communications.hang(world_.random.chance(500), trainer.rank);
      mend_after(long_ms, long_ms, [this] { world_.communications.let_go(); });
      break;
    case Fault::rank_slow: {
      constexpr int slowness = 6;
      constexpr TimeMs iterations = 16;
      trainer.slow_down(slowness);
      const TimeMs for_ms = iterations * slowness * world_.settings.iteration_ms;
      mend_after(for_ms, for_ms, [this, instance = trainer.instance] {
        if (Trainer* slow = world_.trainer(instance)) slow->slow_down(1);
      });
      break;
    }
    default:
      trainer.pause_next(long_ms);
      mend_after(long_ms, long_ms, [] {});
  }
  return true;
}

// As a virtual machine that is suspended.
bool Faults::suspend_node() {
  Machine* machine = pick_machine();
  if (machine == nullptr || world_.trainers_on(machine->id).empty()) return false;
  const TimeMs pause_ms = world_.random.between(300, 8000);
  std::vector<std::uint64_t> suspended;
  for (Trainer* trainer : world_.trainers_on(machine->id)) {
    if (trainer->is_halted()) continue;
    trainer->suspend();
    suspended.push_back(trainer->instance);
  }
  machine->agent->freeze();
  mend_after(pause_ms, pause_ms, [this, suspended, node = machine->id, id = machine->agent->id()] {
    for (const std::uint64_t instance : suspended) {
      if (Trainer* trainer = world_.trainer(instance)) trainer->wake();
    }
    if (Agent* agent = world_.agent(node, id)) agent->wake();
  });
  return true;
}

}  // namespace ckpt::sim
