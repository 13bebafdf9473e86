#include "sim/world.hpp"

#include <exception>
#include <utility>

#include "sim/message_contents.hpp"

namespace ckpt::sim {

using namespace core;

namespace {
constexpr std::uint64_t steps_max = 2'000'000;
}

World::World(const Settings& run_settings, std::ostream* trace_to)
    : settings(run_settings),
      random(mix(settings.seed, hash_of("world"))),
      trace(trace_to),
      network(event_queue, Random(mix(settings.seed, hash_of("network"))), settings.loss_per_mille,
              [this](NodeId from, NodeId to, const Message& message) { deliver(from, to, message); }),
      store(event_queue, Random(mix(settings.seed, hash_of("store"))),
            [this](NodeId by, const LeaderRecordRead& now) { invariants.leader_written(by, now); }),
      storage(*this),
      transfers(*this),
      launcher(*this),
      communications(*this),
      invariants(*this),
      faults(*this),
      liveness_check(*this),
      commit_rate_check(*this),
      protection(*this),
      watch_check(*this),
      halt_check(*this),
      repeat_check(*this) {}

World::~World() = default;

Outcome World::run() {
  Outcome outcome;
  outcome.seed = settings.seed;
  try {
    for (NodeId node = 0; node < settings.nodes; ++node) add_machine(node);
    launcher.start();
    faults.start();
    while (!liveness_check.is_reached() && event_queue.step()) {
      graveyard_.clear();
      faults.after_step();
      liveness_check.after_step();
      commit_rate_check.after_step();
      protection.after_step();
      watch_check.after_step();
      if (event_queue.steps() > steps_max) throw Violation{"I6", "events follow one another without end"};
    }
  } catch (const Violation& violation) {
    outcome.violation = violation;
  } catch (const std::exception& error) {
    outcome.violation = Violation{"core", text("the core threw: ", error.what())};
  }
  outcome.virtual_ms = event_queue.now();
  outcome.steps = event_queue.steps();
  outcome.fingerprint = trace.fingerprint();
  outcome.faults = faults.table();
  outcome.tally = invariants.tally();
  outcome.tally.restarts = launcher.launch() - 1;
  outcome.plan = faults.planned();
  outcome.tally.named = watch_check.named();
  outcome.tally.halts = halt_check.halts();
  outcome.tally.late_captures = halt_check.late_captures();
  outcome.tally.late_restores = halt_check.late_restores();
  outcome.tally.rejoined = launcher.rejoined();
  outcome.tally.kept = halt_check.kept();
  outcome.tally.started_anew = launcher.started_anew();
  outcome.tally.repeated = repeat_check.equal();
  outcome.tally.repeated_in_vain = repeat_check.in_vain();
  outcome.tally.not_repeated = repeat_check.missed();
  outcome.tally.given_up = launcher.give_ups();
  outcome.tally.slowest_commit_ms = commit_rate_check.slowest_ms();
  outcome.tally.slowest_recovery_ms = liveness_check.took_ms();
  return outcome;
}

// ---- Machines ----

void World::add_machine(NodeId id) {
  Machine& machine = machines[id];
  machine.id = id;
  machine.arena.id = random.next();
  machine.memory_since = event_queue.now();
  machine.clock_offset_ms = random.between(0, 1'000'000);
  next_node_ = std::max(next_node_, id + 1);
  event_queue.after(random.between(0, 500), [this, &machine] { start_agent(machine); });
}

Agent* World::agent_on(NodeId node) {
  const auto found = machines.find(node);
  return found == machines.end() ? nullptr : found->second.agent.get();
}

Agent* World::agent(NodeId node, std::uint64_t id) {
  Agent* agent = agent_on(node);
  return agent != nullptr && agent->id() == id ? agent : nullptr;
}

void World::start_agent(Machine& machine) {
  if (machine.agent || machine.is_lost) return;
  trace.line(event_queue.now(), [&] { return text("node ", machine.id, " agent starts"); });
  machine.agent = std::make_unique<Agent>(*this, machine, ++agents_);
  machine.awake_since = machine.listens_since = machine.paused_from = event_queue.now();
  watch_check.agent_started(machine.id);
  machine.agent->start();
}

void World::crash_agent(Machine& machine) {
  if (!machine.agent) return;
  trace.line(event_queue.now(), [&] { return text("node ", machine.id, " agent crashes"); });
  transfers.agent_died(machine.id, machine.agent->id());
  graveyard_.push_back(std::move(machine.agent));
  for (Trainer* trainer : trainers_on(machine.id)) trainer->agent_died();
  event_queue.after(random.between(20, 3000), [this, &machine] { start_agent(machine); });
}

void World::lose_machine(Machine& machine) {
  if (machine.is_lost) return;
  trace.line(event_queue.now(), [&] { return text("node ", machine.id, " is lost"); });
  machine.is_lost = true;
  machine.memory_since = event_queue.now();
  invariants.memory_lost(machine);
  if (machine.agent) {
    transfers.agent_died(machine.id, machine.agent->id());
    graveyard_.push_back(std::move(machine.agent));
  }
  for (Trainer* trainer : trainers_on(machine.id)) trainer->die();
  machine.arena = Arena{};
  ++replacements_due_;
  event_queue.after(random.between(100, 5000), [this, id = machine.id] { replace(id); });
}

// Replaces a lost machine by one with the same number, or with a new one.
void World::replace(NodeId id) {
  --replacements_due_;
  if (random.chance(500)) {
    add_machine(next_node_);
    return;
  }
  Machine& machine = machines.at(id);
  machine.is_lost = false;
  machine.arena.id = random.next();
  machine.memory_since = event_queue.now();
  machine.clock_offset_ms = random.between(0, 1'000'000);
  start_agent(machine);
}

std::vector<NodeId> World::usable_machines() const {
  std::vector<NodeId> usable;
  for (const auto& [id, machine] : machines) {
    if (!machine.is_lost && !machine.is_shunned) usable.push_back(id);
  }
  return usable;
}

bool World::is_reachable_from(const Machine& node, const Machine& leader, TimeMs since) const {
  if (!node.agent || node.agent->is_frozen() || node.awake_since > since) return false;
  if (node.id == leader.id) return true;
  if (node.effects_fail_until > since) return false;
  const bool knows_leader = store.answers_since(node.id) <= since || node.agent->node().status().leader == leader.id;
  return knows_leader && network.open_both_ways_since(node.id, leader.id) <= since && network.fair_since() <= since;
}

void World::agent_paused(Machine& machine, TimeMs since) {
  if (event_queue.now() - since < pause_ms()) return;
  machine.awake_since = machine.listens_since = event_queue.now();
  machine.paused_from = since;
  pause_began_ = pause_ended_ < since ? since : std::min(pause_began_, since);
  pause_ended_ = event_queue.now();
}

TimeMs World::news_of_before() const {
  const TimeMs believed_ms = settings.core.node_timeout_ms + 2 * settings.core.report_ms + Network::delay_ms_max;
  const TimeMs since = event_queue.now() - believed_ms;
  return pause_ended_ >= since ? std::min(since, pause_began_ - believed_ms) : since;
}

void World::deliver(NodeId from, NodeId to, const Message& message) {
  Agent* agent = agent_on(to);
  if (agent == nullptr) return;
  for (const Directive* directive : directives_for(to, message)) {
    if (directive->decision.verdict != Verdict::undecided)
      decision_notified_ = std::max(decision_notified_, directive->incarnation);
  }
  agent->receive(MessageArrived{from, message});
}

bool World::decision_is_notified() const { return decision_notified_ >= store.incarnation_record().record.incarnation; }

// ---- Trainers ----

std::uint64_t World::make_trainer(int launch, Rank rank, NodeId node, const std::optional<Kept>& kept) {
  std::erase_if(trainers_, [](const auto& entry) { return !entry.second->is_alive(); });
  const std::uint64_t instance = random.next();
  trainers_[instance] = std::make_unique<Trainer>(*this, instance, launch, rank, launcher.ranks(), node, kept);
  return instance;
}

Trainer* World::trainer(std::uint64_t instance) {
  const auto found = trainers_.find(instance);
  return found == trainers_.end() || !found->second->is_alive() ? nullptr : found->second.get();
}

std::vector<Trainer*> World::living_trainers() {
  std::vector<Trainer*> living;
  for (const auto& [instance, trainer] : trainers_) {
    if (trainer->is_alive()) living.push_back(trainer.get());
  }
  return living;
}

std::vector<Trainer*> World::trainers_on(NodeId node) {
  std::vector<Trainer*> there = living_trainers();
  std::erase_if(there, [&](const Trainer* trainer) { return trainer->node != node; });
  return there;
}

void World::trainer_died(const Trainer& trainer) {
  trace.line(event_queue.now(), [&] {
    return text("node ", trainer.node, " trainer of rank ", trainer.rank, " dies, launch ", trainer.launch);
  });
  if (Agent* agent = agent_on(trainer.node)) {
    agent->later(random.between(0, 10), [instance = trainer.instance, died = !trainer.is_closed()](Agent& a) {
      a.trainer_ended(instance, died);
    });
  }
  watch_check.ended(trainer);
  if (!trainer.has_left()) launcher.trainer_died(trainer);
}

void World::notify(std::uint64_t instance, std::function<void(Trainer&)> message) {
  event_queue.after(0, [this, instance, message = std::move(message)] {
    if (Trainer* addressee = trainer(instance)) message(*addressee);
  });
}

void World::give_up_job() {
  trace.line(event_queue.now(), [] { return std::string("the operator gives the job's state up"); });
  for (Trainer* trainer : living_trainers()) trainer->die();
  for (auto& [id, machine] : machines) {
    if (machine.is_lost) continue;
    crash_agent(machine);
    machine.arena = Arena{};
    machine.arena.id = random.next();
  }
  transfers.forget_everything();
  network.forget_everything();
  store.clear();
  decision_notified_ = 0;
  storage.clear();
  invariants.forget_everything();
  watch_check.forget_everything();
  halt_check.forget_everything();
}

}  // namespace ckpt::sim
