#include "sim/world.hpp"

#include <exception>
#include <utility>

#include "sim/message_contents.hpp"

namespace ckpt::sim {

using namespace protocol;

namespace {
constexpr std::uint64_t steps_max = 2'000'000;
}

World::World(const Settings& run_settings, std::ostream* trace_to)
    : settings(run_settings),
      random(mix(settings.seed, hash_of("world"))),
      trace(trace_to),
      network(timeline, Random(mix(settings.seed, hash_of("network"))), settings.loss_per_mille,
              [this](NodeId from, NodeId to, const Message& message) { deliver(from, to, message); }),
      store(timeline, Random(mix(settings.seed, hash_of("store"))),
            [this](NodeId by, const RootRead& now) { invariants.root_written(by, now); }),
      storage(*this),
      transfers(*this),
      launcher(*this),
      invariants(*this),
      faults(*this),
      ending(*this),
      pace(*this),
      protection(*this) {}

World::~World() = default;

Outcome World::run() {
  Outcome outcome;
  outcome.seed = settings.seed;
  try {
    for (NodeId node = 0; node < settings.nodes; ++node) add_machine(node);
    launcher.start();
    faults.start();
    while (!ending.is_reached() && timeline.step()) {
      graveyard_.clear();
      faults.after_step();
      ending.after_step();
      pace.after_step();
      protection.after_step();
      if (timeline.steps() > steps_max) throw Violation{"I6", "events follow one another without end"};
    }
  } catch (const Violation& violation) {
    outcome.violation = violation;
  } catch (const std::exception& error) {
    outcome.violation = Violation{"core", text("the core threw: ", error.what())};
  }
  outcome.virtual_ms = timeline.now();
  outcome.steps = timeline.steps();
  outcome.fingerprint = trace.fingerprint();
  outcome.faults = faults.table();
  outcome.tally = invariants.tally();
  outcome.tally.restarts = launcher.launch() - 1;
  outcome.plan = faults.planned();
  outcome.tally.given_up = launcher.give_ups();
  outcome.tally.slowest_commit_ms = pace.slowest_ms();
  outcome.tally.slowest_recovery_ms = ending.took_ms();
  return outcome;
}

// ---- Machines ----

void World::add_machine(NodeId id) {
  Machine& machine = machines[id];
  machine.id = id;
  machine.arena.id = random.next();
  machine.memory_since = timeline.now();
  machine.clock_offset_ms = random.between(0, 1'000'000);
  next_node_ = std::max(next_node_, id + 1);
  timeline.after(random.between(0, 500), [this, &machine] { start_agent(machine); });
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
  trace.line(timeline.now(), [&] { return text("node ", machine.id, " agent starts"); });
  machine.agent = std::make_unique<Agent>(*this, machine, ++agents_);
  machine.awake_since = machine.listens_since = machine.paused_from = timeline.now();
  machine.agent->start();
}

void World::crash_agent(Machine& machine) {
  if (!machine.agent) return;
  trace.line(timeline.now(), [&] { return text("node ", machine.id, " agent crashes"); });
  transfers.agent_died(machine.id, machine.agent->id());
  graveyard_.push_back(std::move(machine.agent));
  for (Trainer* trainer : trainers_on(machine.id)) trainer->agent_died();
  timeline.after(random.between(20, 3000), [this, &machine] { start_agent(machine); });
}

void World::lose_machine(Machine& machine) {
  if (machine.is_lost) return;
  trace.line(timeline.now(), [&] { return text("node ", machine.id, " is lost"); });
  machine.is_lost = true;
  machine.memory_since = timeline.now();
  invariants.memory_lost(machine);
  if (machine.agent) {
    transfers.agent_died(machine.id, machine.agent->id());
    graveyard_.push_back(std::move(machine.agent));
  }
  for (Trainer* trainer : trainers_on(machine.id)) trainer->die();
  machine.arena = Arena{};
  ++replacements_due_;
  timeline.after(random.between(100, 5000), [this, id = machine.id] { replace(id); });
}

// By a machine of the same name, or of another.
void World::replace(NodeId id) {
  --replacements_due_;
  if (random.chance(500)) {
    add_machine(next_node_);
    return;
  }
  Machine& machine = machines.at(id);
  machine.is_lost = false;
  machine.arena.id = random.next();
  machine.memory_since = timeline.now();
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

bool World::could_be_heard(const Machine& node, const Machine& root, TimeMs since) const {
  if (!node.agent || node.agent->is_frozen() || node.awake_since > since) return false;
  if (node.id == root.id) return true;
  const bool knows_root = store.answers_since(node.id) <= since || node.agent->node().status().root == root.id;
  return knows_root && network.open_both_ways_since(node.id, root.id) <= since && network.fair_since() <= since;
}

void World::agent_paused(Machine& machine, TimeMs since) {
  if (timeline.now() - since < pause_ms()) return;
  machine.awake_since = machine.listens_since = timeline.now();
  machine.paused_from = since;
  pause_began_ = pause_ended_ < since ? since : std::min(pause_began_, since);
  pause_ended_ = timeline.now();
}

TimeMs World::news_of_before() const {
  const TimeMs believed_ms = settings.core.node_timeout_ms + 2 * settings.core.report_ms + Network::delay_ms_max;
  const TimeMs since = timeline.now() - believed_ms;
  return pause_ended_ >= since ? std::min(since, pause_began_ - believed_ms) : since;
}

void World::deliver(NodeId from, NodeId to, const Message& message) {
  Agent* agent = agent_on(to);
  if (agent == nullptr) return;
  for (const Directive* directive : directives_for(to, message)) {
    if (directive->decision.verdict != Verdict::undecided)
      decision_told_ = std::max(decision_told_, directive->incarnation);
  }
  agent->receive(MessageArrived{from, message});
}

bool World::decision_is_told() const { return decision_told_ >= store.life().record.incarnation; }

// ---- Trainers ----

std::uint64_t World::make_trainer(int launch, Rank rank, NodeId node) {
  std::erase_if(trainers_, [](const auto& entry) { return !entry.second->is_alive(); });
  const std::uint64_t instance = random.next();
  trainers_[instance] = std::make_unique<Trainer>(*this, instance, launch, rank, node);
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
  trace.line(timeline.now(), [&] {
    return text("node ", trainer.node, " trainer of rank ", trainer.rank, " dies, launch ", trainer.launch);
  });
  if (Agent* agent = agent_on(trainer.node)) {
    agent->later(random.between(0, 10), [instance = trainer.instance](Agent& a) { a.trainer_died(instance); });
  }
  launcher.trainer_died(trainer);
}

void World::tell(std::uint64_t instance, std::function<void(Trainer&)> message) {
  timeline.after(0, [this, instance, message = std::move(message)] {
    if (Trainer* addressee = trainer(instance)) message(*addressee);
  });
}

void World::give_up_job() {
  trace.line(timeline.now(), [] { return std::string("the operator gives the job's state up"); });
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
  decision_told_ = 0;
  storage.clear();
  invariants.forget_everything();
}

}  // namespace ckpt::sim
