// How each fault strikes, and how it is mended.
#include <algorithm>
#include <set>

#include "sim/faults.hpp"
#include "sim/random.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

bool Faults::strike_trainer(Fault fault) {
  Trainer* trainer = pick_trainer();
  if (trainer == nullptr) return false;
  if (fault == Fault::trainer_crash) {
    trainer->die();
  } else if (fault == Fault::trainer_freeze) {
    trainer->freeze();
    mend_after(200, 9000, [this, instance = trainer->instance] {
      if (Trainer* frozen = world_.trainer(instance)) frozen->wake();
    });
  } else if (fault == Fault::trainer_left_behind) {
    if (world_.launcher.is_between_launches()) return false;
    world_.launcher.leave_some_behind();
    world_.launcher.restart();
  } else {
    if (trainer->stage() != Stage::training) return false;
    trainer->forget_next_before_update();
  }
  return true;
}

bool Faults::claim_twice() {
  Machine* machine = pick_machine();
  if (machine == nullptr) return false;
  const Rank rank = static_cast<Rank>(world_.random.below(world_.launcher.ranks()));
  const std::uint64_t instance = world_.make_trainer(-1, rank, machine->id);
  world_.trainer(instance)->start();
  mend_after(1000, 8000, [this, instance] {
    if (Trainer* intruder = world_.trainer(instance)) intruder->die();
  });
  return true;
}

bool Faults::change_world_size() {
  if (world_.launcher.is_between_launches()) return false;
  const Rank ranks = world_.launcher.ranks();
  const auto most = std::max<std::int64_t>(3, 2 * world_.settings.ranks);
  const auto drawn = static_cast<Rank>(world_.random.between(1, most - 1));
  const Rank other = drawn < ranks ? drawn : drawn + 1;
  // In half of the restarts of jobs that resize, the ranks split the state in another way, and in half of these they
  // are as many.
  const unsigned split = world_.launcher.split();
  Random splitting(
      mix(world_.settings.seed, mix(hash_of("split"), static_cast<std::uint64_t>(world_.launcher.launch()))));
  const bool is_resplit = world_.settings.resizes && splitting.chance(500);
  world_.launcher.restart_with(is_resplit && splitting.chance(500) ? ranks : other, is_resplit ? 1 - split : split);
  return true;
}

bool Faults::disturb_updates() {
  Trainer* trainer = pick_trainer();
  if (trainer == nullptr || trainer->stage() != Stage::training) return false;
  trainer->disturb_updates(static_cast<int>(world_.random.between(1, 12)));
  return true;
}

bool Faults::repeat_wrong() {
  std::vector<std::uint64_t> repeating;
  for (const auto& [id, transfer] : world_.transfers.active())
    if (transfer.base) repeating.push_back(id);
  if (repeating.empty()) return false;
  world_.transfers.compute_wrong(world_.random.pick(repeating));
  return true;
}

bool Faults::corrupt_silently() {
  if (world_.settings.sharers == 1) return false;
  Trainer* trainer = pick_trainer();
  if (trainer == nullptr || trainer->stage() != Stage::training) return false;
  trainer->corrupt_state();
  // An operator sees the alarm and restarts the job from an older checkpoint.
  mend_after(1000, 4000, [this] { world_.launcher.restart(); });
  return true;
}

bool Faults::strike_agent(Fault fault) {
  Machine* machine = fault == Fault::leader_crash ? leader_machine() : pick_machine();
  if (machine == nullptr) return false;
  if (fault == Fault::agent_crash_midway) {
    machine->agent->crash_in_next_effects(static_cast<int>(world_.random.below(6)));
  } else if (fault == Fault::leader_crash && world_.random.chance(400)) {
    world_.lose_machine(*machine);
  } else {
    world_.crash_agent(*machine);
  }
  mend_after(3000, 5000, [] {});
  return true;
}

void Faults::freeze(Machine& machine, TimeMs low_ms, TimeMs high_ms) {
  machine.agent->freeze();
  mend_after(low_ms, high_ms, [this, node = machine.id, id = machine.agent->id()] {
    if (Agent* agent = world_.agent(node, id)) agent->wake();
  });
}

bool Faults::freeze_agent(bool on_leader, TimeMs least_ms) {
  Machine* machine = on_leader ? leader_machine() : pick_machine();
  if (machine == nullptr) return false;
  freeze(*machine, least_ms, 7000);
  return true;
}

// The agents wake all at once, as after a pause of the whole cluster, or each at its own time.
bool Faults::freeze_agents(bool all) {
  std::vector<Machine*> running;
  for (auto& [id, machine] : world_.machines) {
    if (machine.agent && !machine.agent->is_frozen()) running.push_back(&machine);
  }
  if (running.size() < 2) return false;
  world_.random.shuffle(running);
  if (!all) running.resize(2 + world_.random.below(running.size() - 1));
  const TimeMs pause_ms = world_.random.between(1000, 15000);
  const TimeMs apart_ms = world_.random.chance(700) ? 20 : 3000;
  for (Machine* machine : running) freeze(*machine, pause_ms, pause_ms + apart_ms);
  return true;
}

bool Faults::lose_machines(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    Machine* machine = pick_machine();
    if (machine == nullptr) return i > 0;
    world_.lose_machine(*machine);
  }
  mend_after(5000, 5000, [] {});
  return true;
}

bool Faults::outdate_machine() {
  const auto trainers = world_.launcher.trainers();
  if (trainers.empty() || world_.usable_machines().size() < 3) return false;
  Machine& machine = world_.machines.at(world_.random.pick(trainers)->node);
  const int cut = world_.network.cut({machine.id}, false);
  machine.is_shunned = true;
  for (Trainer* trainer : world_.trainers_on(machine.id)) trainer->die();
  mend_after(9000, 20000, [this, &machine, cut] {
    std::set<NodeId> others;
    for (const Trainer* trainer : world_.launcher.trainers()) others.insert(trainer->node);
    others.erase(machine.id);
    for (const NodeId other : others) world_.lose_machine(world_.machines.at(other));
    machine.is_shunned = false;
    world_.network.mend(cut);
  });
  return true;
}

bool Faults::tear_write() {
  std::vector<Trainer*> capturing = world_.living_trainers();
  std::erase_if(capturing, [](const Trainer* trainer) { return !trainer->is_capturing(); });
  std::vector<NodeId> receiving;
  for (const auto& [id, transfer] : world_.transfers.active()) receiving.push_back(transfer.to);
  if (!capturing.empty() && (receiving.empty() || world_.random.chance(500))) {
    world_.random.pick(capturing)->die();
    return true;
  }
  if (receiving.empty()) return false;
  world_.crash_agent(world_.machines.at(world_.random.pick(receiving)));
  mend_after(3000, 5000, [] {});
  return true;
}

bool Faults::flip_stored_bit() {
  std::vector<Slot*> whole;
  for (auto& [id, machine] : world_.machines) {
    machine.arena.for_each([&](const SlotRef&, Slot& slot) {
      if (slot.findable() && slot.intact()) whole.push_back(&slot);
    });
  }
  if (whole.empty()) return false;
  Slot& slot = *world_.random.pick(whole);
  slot.bytes ^= 2;
  world_.invariants.bit_flipped(slot);
  return true;
}

bool Faults::flip_wire_bit() {
  std::vector<std::uint64_t> flying, repeating;
  for (const auto& [id, transfer] : world_.transfers.active()) {
    flying.push_back(id);
    if (transfer.base) repeating.push_back(id);
  }
  if (flying.empty()) return false;
  if (!repeating.empty() && world_.random.chance(700)) flying = repeating;  // it carries gradients
  world_.transfers.flip_bit(world_.random.pick(flying));
  return true;
}

bool Faults::fill_memory() {
  Machine* machine = pick_machine();
  if (machine == nullptr) return false;
  machine->memory_full_until = world_.event_queue.now() + world_.random.between(500, 6000);
  mend_after(6000, 6000, [] {});
  return true;
}

// A node whose clock jumps takes the jump for a pause, in which it has not listened.
void Faults::jump(Machine& machine, TimeMs by_ms) {
  machine.clock_offset_ms += by_ms;
  world_.watch_check.agent_disturbed(machine.id, by_ms);
  if (by_ms < world_.pause_ms()) return;
  machine.listens_since = machine.paused_from = world_.event_queue.now();
}

bool Faults::jump_clock() {
  Machine* machine = pick_machine();
  if (machine == nullptr) return false;
  jump(*machine, world_.random.between(300, 12000));
  return true;
}

bool Faults::jump_all_clocks() {
  const TimeMs by_ms = world_.random.between(1000, 15000);
  for (auto& [id, machine] : world_.machines) {
    if (machine.agent) jump(machine, by_ms);
  }
  return true;
}

// Prefers pieces that are newer than the newest commit.
bool Faults::find_damage() {
  struct Candidate {
    NodeId node = 0;
    SlotRef ref;
  };
  std::vector<Candidate> whole, uncommitted;
  for (auto& [id, machine] : world_.machines) {
    if (!machine.agent) continue;
    machine.arena.for_each([&, node = id](const SlotRef& ref, const Slot& slot) {
      if (!slot.counted || !slot.intact()) return;
      whole.push_back({node, ref});
      if (slot.header.checkpoint > world_.invariants.history().newest_committed()) uncommitted.push_back({node, ref});
    });
  }
  if (whole.empty()) return false;
  const Candidate& found = world_.random.pick(!uncommitted.empty() && world_.random.chance(700) ? uncommitted : whole);
  Machine& machine = world_.machines.at(found.node);
  Slot& slot = *machine.arena.find(found.ref);
  slot.bytes ^= 2;
  world_.invariants.bit_flipped(slot);
  machine.agent->later(world_.random.between(0, 1500), [ref = found.ref](Agent& agent) { agent.verify(ref); });
  return true;
}

bool Faults::spoil_record(Fault fault) {
  const bool is_lost = fault == Fault::store_record_lost;
  const auto spoiled = is_lost ? world_.store.lose_record() : world_.store.take_back_record();
  if (spoiled == Store::Spoiled::nothing) return false;
  if (spoiled == Store::Spoiled::leader) world_.invariants.leader_record_spoiled();
  if (spoiled == Store::Spoiled::incarnation_record) world_.invariants.incarnation_record_spoiled();
  mend_after(4000, 4000, [] {});
  return true;
}

bool Faults::fail_effects() {
  Machine* machine = pick_machine();
  if (machine == nullptr) return false;
  machine->effects_fail_until = world_.event_queue.now() + world_.random.between(500, 6000);
  mend_after(6000, 6000, [] {});
  return true;
}

bool Faults::cut_network(bool one_way) {
  std::vector<NodeId> nodes = world_.usable_machines();
  world_.random.shuffle(nodes);
  const std::size_t size = 1 + world_.random.below(std::max<std::size_t>(1, nodes.size() / 2));
  const std::set<NodeId> inside(nodes.begin(),
                                nodes.begin() + static_cast<std::ptrdiff_t>(std::min(size, nodes.size())));
  const int cut = world_.network.cut(inside, one_way);
  const TimeMs duration = world_.random.between(300, 9000);
  const bool from_store_too = world_.random.chance(300);
  for (const NodeId node : inside) {
    if (from_store_too) world_.store.cut_off(node, duration);
  }
  mend_after(duration, duration, [this, cut] { world_.network.mend(cut); });
  return true;
}

bool Faults::worsen_conditions(Fault fault) {
  Network::NetworkConditions conditions;
  if (fault == Fault::messages_lost) conditions.loss = static_cast<unsigned>(world_.random.between(100, 700));
  if (fault == Fault::messages_repeated) conditions.repeats = 600;
  if (fault == Fault::messages_reordered) conditions.delay_ms_max = world_.random.between(100, 3000);
  world_.network.set_conditions(conditions);
  mend_after(500, 5000, [this] { world_.network.set_conditions({}); });
  return true;
}

bool Faults::stop_store(Fault fault) {
  TimeMs duration = 5000;
  if (fault == Fault::store_outage) {
    duration = world_.random.between(200, 7000);
    world_.store.outage(duration);
  } else {
    world_.store.lose_answers(static_cast<int>(world_.random.between(1, 4)));
  }
  mend_after(duration, duration, [] {});
  return true;
}

// Strikes only if storage has a checkpoint. Otherwise the job's state would be lost for certain, and the run would show
// nothing.
bool Faults::lose_everything() {
  if (!world_.storage.newest_sound(0)) return false;
  for (auto& [id, machine] : world_.machines) world_.lose_machine(machine);
  mend_after(5000, 5000, [] {});
  return true;
}

bool Faults::hurt_storage(Fault fault) {
  if (!world_.settings.core.storage) return false;
  if (fault == Fault::storage_damaged) return world_.storage.damage_newest();
  const TimeMs duration = world_.random.between(500, 12000);
  world_.storage.outage(duration);
  mend_after(duration, duration, [] {});
  return true;
}

}  // namespace ckpt::sim
