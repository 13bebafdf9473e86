#include "sim/faults.hpp"

#include <optional>

#include "sim/world.hpp"

namespace ckpt::sim {

namespace {
constexpr TimeMs aim_ms = 5000;        // how long a fault waits for its phase; then it strikes in any phase
constexpr TimeMs give_up_ms = 9000;    // how long a fault waits for something to strike; then it is left out
constexpr TimeMs learning_ms = 25000;  // likewise, of a fault for which agents must know all ranks
bool is_watched(Fault fault) {
  const auto number = static_cast<std::size_t>(fault);
  return number >= first_watched_fault && number < first_repeating_fault;
}
bool needs_training(Fault fault) { return fault == Fault::update_unannounced || fault == Fault::silent_corruption; }

// The phases from the loss of a leader until all copies exist again.
bool is_of_recovery(Phase phase) {
  return phase == Phase::electing || phase == Phase::gathering || phase == Phase::deciding ||
         phase == Phase::announcing || phase == Phase::restoring || phase == Phase::reprotecting ||
         phase == Phase::decoding || phase == Phase::replacing;
}
}  // namespace

bool is_possible(Fault fault, Phase phase) {
  // By the time when agents know all ranks again, what follows a restore is over.
  if (is_watched(fault))
    return phase >= Phase::capturing && phase != Phase::gathering && phase != Phase::announcing &&
           phase != Phase::reprotecting && phase != Phase::decoding && phase != Phase::halting &&
           phase != Phase::rejoining && phase != Phase::resizing;
  switch (fault) {
    // These faults need a trainer, or one that trains.
    case Fault::trainer_crash:
    case Fault::trainer_freeze:
      return true;
    case Fault::trainer_left_behind:
      return phase != Phase::down;
    case Fault::update_unannounced:
    case Fault::silent_corruption:
    case Fault::update_disturbed:
      return phase != Phase::down && phase != Phase::hello && phase != Phase::deciding && phase != Phase::announcing &&
             phase != Phase::rejoining;
    // These faults need a slot that is being written.
    case Fault::torn_write:
    case Fault::bit_flip_wire:
    case Fault::repeat_wrong:
      return phase != Phase::idle;
    default:
      return true;
  }
}

void Faults::start() {
  for (int i = 0; i < world_.settings.faults; ++i) plan_one();
  if (world_.settings.is_hard) plan_harder();
  if (world_.settings.is_hard) plan_rare();
  if (world_.settings.elastic || world_.settings.resizes) plan_elastic();
  if (world_.settings.watches) plan_watched();
  if (world_.settings.can_halt()) plan_halts();
  if (world_.settings.can_rejoin()) plan_rejoins();
  if (world_.settings.recomputes) plan_repeats();
  leave_out();
  armed_at_ = world_.event_queue.now() + world_.random.between(0, world_.settings.fault_gap_ms);
}

// False if the phase never comes in this run, because the run lacks what the phase needs.
bool Faults::can_come(Phase phase) const {
  const core::Config& core = world_.settings.core;
  if (phase == Phase::encoding || phase == Phase::decoding) return core.protection.has_parity();
  return phase != Phase::replacing || core.standby;
}

// Draws a fault. Faults strike the leader more often than by chance, in all phases of a recovery. If there are standby
// nodes, more faults strike while they are replacements.
Faults::Plan Faults::draw() {
  Plan plan;
  const bool is_leader_loss = world_.random.chance(150);
  const bool is_replacing = world_.settings.core.standby && world_.random.chance(300);
  do {
    plan.fault = is_leader_loss ? Fault::leader_crash : static_cast<Fault>(world_.random.below(first_faults));
    plan.phase = is_replacing ? Phase::replacing : static_cast<Phase>(world_.random.below(first_phases));
  } while (!can_come(plan.phase) || !is_possible(plan.fault, plan.phase) ||
           (is_leader_loss && !is_of_recovery(plan.phase)));
  return plan;
}

// Some phases hardly ever come by themselves. This puts another fault, which causes the phase, before the fault.
std::vector<Faults::Plan> Faults::with_prelude(const Plan& plan, Random& random) const {
  std::vector<Plan> plans;
  std::optional<Fault> prelude;
  if (plan.phase == Phase::electing || plan.phase == Phase::gathering) prelude = Fault::leader_crash;
  if (plan.phase == Phase::reprotecting || plan.phase == Phase::decoding || plan.phase == Phase::replacing)
    prelude = Fault::node_loss;
  // The prelude is not the loss of a machine, because then nobody trains. If an agent sleeps, ranks go on training.
  if (plan.phase == Phase::replacing && needs_training(plan.fault)) prelude = Fault::agent_freeze;
  if (plan.phase <= Phase::restoring || plan.phase == Phase::announcing) prelude = Fault::trainer_crash;
  // If messages are slow, the next checkpoint is under way before nodes know that this one is committed.
  if (plan.phase == Phase::committing && plan.fault == Fault::bit_flip_wire) prelude = Fault::messages_reordered;
  // The leader that crashes while nobody leads is one that sleeps.
  const bool on_leader = (plan.fault == Fault::leader_crash || is_watched(plan.fault)) && plan.phase == Phase::electing;
  if (on_leader || (prelude && is_watched(plan.fault))) prelude = Fault::agent_freeze;
  if (prelude && (on_leader || random.chance(700))) plans.push_back({*prelude, Phase::idle, false, on_leader});
  plans.push_back(plan);
  // Damage on storage shows only when the job needs that checkpoint.
  if (plan.fault == Fault::storage_damaged) plans.push_back({Fault::everything_lost, Phase::capturing});
  return plans;
}

void Faults::plan_one() {
  for (const Plan& plan : with_prelude(draw(), world_.random)) plan_.push_back(plan);
}

// Inserts the harder faults anywhere among the others, which stay the same. Two of three strike during a recovery.
void Faults::plan_harder() {
  Random random(mix(world_.settings.seed, hash_of("harder")));
  if (random.chance(400)) return;
  for (std::uint64_t left = 1 + random.below(2); left > 0; --left) {
    Plan plan;
    const bool in_recovery = random.chance(600);
    do {
      plan.fault = static_cast<Fault>(first_faults + random.below(hard_faults));
      plan.phase = static_cast<Phase>(random.below(first_phases));
    } while (!can_come(plan.phase) || (in_recovery && !is_of_recovery(plan.phase)));
    std::vector<std::size_t> places = {0};  // where a fault may be inserted: not between a fault and its prelude
    for (std::size_t i = 0; i < plan_.size(); ++i)
      if (plan_[i].is_last) places.push_back(i + 1);
    const auto plans = with_prelude(plan, random);
    plan_.insert(plan_.begin() + static_cast<std::ptrdiff_t>(random.pick(places)), plans.begin(), plans.end());
  }
}

// Adds faults that hardly ever strike in a drawn plan, because they need other faults before. They follow all others,
// which stay the same.
void Faults::plan_rare() {
  const core::Config& core = world_.settings.core;
  Random random(mix(world_.settings.seed, hash_of("rare")));
  if (!core.standby || world_.settings.sharers == 1 || !random.chance(200)) return;
  for (const Plan& plan : with_prelude({Fault::silent_corruption, Phase::replacing}, random)) plan_.push_back(plan);
}

// Adds changes of the number of ranks, with another fault during each. They follow all others.
void Faults::plan_elastic() {
  Random random(mix(world_.settings.seed, hash_of("world size")));
  for (std::uint64_t left = 1 + random.below(3); left > 0; --left) {
    const auto phase = static_cast<Phase>(random.below(first_phases));
    if (can_come(phase)) plan_.push_back({Fault::world_size_changed, phase});
    Plan plan;
    do {
      plan.fault = static_cast<Fault>(random.below(first_faults));
      plan.phase = static_cast<Phase>(random.below(first_phases));
    } while (!can_come(plan.phase) || !is_of_recovery(plan.phase) || !is_possible(plan.fault, plan.phase));
    if (random.chance(700)) plan_.push_back(plan);
  }
  for (std::uint64_t left = 1 + random.below(2); left > 0; --left) {
    plan_.push_back({Fault::world_size_changed, Phase::capturing, false});
    plan_.push_back({static_cast<Fault>(random.below(first_faults + hard_faults)), Phase::resizing});
  }
  plan_.push_back({Fault::world_size_changed, Phase::capturing});
}

// Among the others, which stay the same. Every second time, the leader is lost next.
void Faults::plan_watched() {
  Random random(mix(world_.settings.seed, hash_of("watched")));
  for (std::uint64_t left = 1 + random.below(3); left > 0; --left) {
    Plan plan;
    const bool is_replacing = world_.settings.core.standby && random.chance(600);
    do {
      plan.fault = static_cast<Fault>(first_watched_fault + random.below(watched_faults));
      plan.phase = is_replacing ? Phase::replacing : static_cast<Phase>(random.below(first_phases));
    } while (!can_come(plan.phase) || !is_possible(plan.fault, plan.phase));
    std::vector<std::size_t> places = {0};  // not between a fault and its prelude
    for (std::size_t i = 0; i < plan_.size(); ++i)
      if (plan_[i].is_last) places.push_back(i + 1);
    auto plans = with_prelude(plan, random);
    if (random.chance(500)) {
      plans.back().is_last = false;
      plans.push_back({Fault::leader_crash, Phase::idle});
    }
    plan_.insert(plan_.begin() + static_cast<std::ptrdiff_t>(random.pick(places)), plans.begin(), plans.end());
  }
}

// Leaves out the faults that a replay shall not have. If the replay shall have other random choices, they change from
// here on.
void Faults::leave_out() {
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    plan_[i].number = i + 1;
    planned_.push_back(text(fault_names[static_cast<std::size_t>(plan_[i].fault)], " while ",
                            phase_names[static_cast<std::size_t>(plan_[i].phase)]));
  }
  const auto& only = world_.settings.only_faults;
  if (only) std::erase_if(plan_, [&](const Plan& plan) { return !only->contains(plan.number); });
  if (world_.settings.shake != 0) world_.random = Random(mix(world_.random.next(), world_.settings.shake));
}

void Faults::after_step() {
  const TimeMs now = world_.event_queue.now();
  if (plan_.empty() || now < armed_at_) return;
  const Plan plan = plan_.front();
  const Phases phases = current_phases(world_);
  const bool on_target = phases.test(static_cast<std::size_t>(plan.phase));
  if (!on_target && now < armed_at_ + aim_ms) return;
  if (!world_.random.chance(300)) return;  // so that faults strike anywhere in the phase, not always at its first event
  if (strike(plan)) {
    count(plan.fault, phases);
    struck_at_ = now;
  } else if (now < armed_at_ + (is_watched(plan.fault) ? learning_ms : give_up_ms)) {
    return;
  }
  plan_.pop_front();
  const bool simultaneous = !plan.is_last || world_.random.chance(250);
  armed_at_ = now + world_.random.between(0, simultaneous ? 50 : world_.settings.fault_gap_ms);
}

void Faults::count(Fault fault, Phases phases) {
  for (std::size_t phase = 0; phase < phase_count; ++phase) {
    if (phases.test(phase)) ++table_[static_cast<std::size_t>(fault)][phase];
  }
  world_.trace.line(world_.event_queue.now(), [&] {
    std::string line = text("*** ", fault_names[static_cast<std::size_t>(fault)], " while");
    for (std::size_t phase = 0; phase < phase_count; ++phase) {
      if (phases.test(phase)) line += text(" ", phase_names[phase]);
    }
    return line;
  });
}

void Faults::mend_after(TimeMs low_ms, TimeMs high_ms, std::function<void()> mend) {
  ++unmended_;
  world_.event_queue.after(world_.random.between(low_ms, high_ms), [this, mend = std::move(mend)] {
    --unmended_;
    mend();
  });
}

bool Faults::strike(const Plan& plan) {
  const Fault fault = plan.fault;
  switch (fault) {
    case Fault::trainer_crash:
    case Fault::trainer_freeze:
    case Fault::trainer_left_behind:
    case Fault::update_unannounced:
      return strike_trainer(fault);
    case Fault::rank_claimed_twice:
      return claim_twice();
    case Fault::silent_corruption:
      return corrupt_silently();
    case Fault::agent_crash:
    case Fault::agent_crash_midway:
    case Fault::leader_crash:
      return strike_agent(fault);
    case Fault::agent_freeze:
      return freeze_agent(plan.on_leader, !plan.is_last && world_.settings.watches ? 3000 : 200);
    case Fault::node_loss:
      return lose_machines(1);
    case Fault::two_node_losses:
      return lose_machines(2);
    case Fault::node_outdated:
      return outdate_machine();
    case Fault::torn_write:
      return tear_write();
    case Fault::bit_flip_stored:
      return flip_stored_bit();
    case Fault::bit_flip_wire:
      return flip_wire_bit();
    case Fault::memory_full:
      return fill_memory();
    case Fault::partition:
      return cut_network(false);
    case Fault::partition_one_way:
      return cut_network(true);
    case Fault::messages_lost:
    case Fault::messages_repeated:
    case Fault::messages_reordered:
      return worsen_conditions(fault);
    case Fault::store_outage:
    case Fault::store_answer_lost:
      return stop_store(fault);
    case Fault::clock_jump:
      return jump_clock();
    case Fault::everything_lost:
      return lose_everything();
    case Fault::storage_outage:
    case Fault::storage_damaged:
      return hurt_storage(fault);
    case Fault::agents_freeze:
      return freeze_agents(false);
    case Fault::all_agents_freeze:
      return freeze_agents(true);
    case Fault::all_clocks_jump:
      return jump_all_clocks();
    case Fault::damage_found:
      return find_damage();
    case Fault::store_record_lost:
    case Fault::store_record_old:
      return spoil_record(fault);
    case Fault::effects_fail:
      return fail_effects();
    case Fault::world_size_changed:
      return change_world_size();
    case Fault::rank_dies:
    case Fault::rank_stops:
    case Fault::rank_spins:
    case Fault::communication_hangs:
    case Fault::rank_slow:
    case Fault::rank_pauses:
    case Fault::rank_dies_in_update:
    case Fault::rank_thaws:
    case Fault::false_suspicion:
    case Fault::late_capture_torn:
    case Fault::halt_lost:
    case Fault::newcomer_dies:
    case Fault::never_rejoins:
    case Fault::survivor_spins:
      return strike_rank(fault);
    case Fault::node_suspended:
      return suspend_node();
    case Fault::update_disturbed:
      return disturb_updates();
    case Fault::repeat_wrong:
      return repeat_wrong();
  }
  return false;
}

// ---- Victims ----

Machine* Faults::leader_machine() {
  const auto leader = world_.machines.find(world_.store.leader().record.node);
  return leader == world_.machines.end() || !leader->second.agent ? nullptr : &leader->second;
}

Machine* Faults::pick_machine() {
  std::vector<Machine*> running;
  std::vector<Machine*> busy;
  for (auto& [id, machine] : world_.machines) {
    if (!machine.agent || machine.agent->is_frozen()) continue;
    running.push_back(&machine);
    for (const auto& [number, transfer] : world_.transfers.active()) {
      if (transfer.to == id || transfer.reads_from(id)) busy.push_back(&machine);
    }
    for (const Trainer* trainer : world_.trainers_on(id)) {
      if (trainer->is_capturing() || trainer->stage() != Stage::training) busy.push_back(&machine);
    }
  }
  if (running.empty()) return nullptr;
  return !busy.empty() && world_.random.chance(600) ? world_.random.pick(busy) : world_.random.pick(running);
}

Trainer* Faults::pick_trainer() {
  std::vector<Trainer*> awake = world_.living_trainers();
  std::erase_if(awake, [](const Trainer* trainer) { return trainer->is_halted(); });
  std::vector<Trainer*> capturing = awake;
  std::erase_if(capturing, [](const Trainer* trainer) { return !trainer->is_capturing(); });
  if (awake.empty()) return nullptr;
  return !capturing.empty() && world_.random.chance(600) ? world_.random.pick(capturing) : world_.random.pick(awake);
}

}  // namespace ckpt::sim
