// How the simulated launcher keeps the processes of healthy ranks, as ckptrun does.
#include <algorithm>

#include "sim/launcher.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

namespace {
constexpr int failures_max = 4;         // of one rank, until all ranks start anew
constexpr TimeMs halt_grace_ms = 3000;  // time to rejoin once a halt is over
}  // namespace

bool Launcher::is_joining() const {
  const auto all = trainers();
  return std::any_of(all.begin(), all.end(), [](const Trainer* each) { return each->stage() != Stage::training; });
}

bool Launcher::is_newest(std::uint64_t instance) const {
  return std::find(instances_.begin(), instances_.end(), instance) != instances_.end();
}

void Launcher::failed(Rank rank) {
  if (!world_.settings.can_rejoin()) return restart();
  if (stopping_) return;
  if (++failures_[rank] > failures_max) return restart();
  if (world_.random.chance(300)) {
    const auto others = trainers();
    if (!others.empty()) world_.random.pick(others)->communication_failed();
  }
  world_.event_queue.after(world_.random.between(50, 1500), [this, rank, launch = launch_] {
    if (launch == launch_ && !stopping_) start_anew(rank);
  });
}

void Launcher::start_anew(Rank rank) {
  if (world_.trainer(instances_[rank]) != nullptr) return;
  if (!place_anew(rank)) {
    world_.event_queue.after(300, [this, rank, launch = launch_] {
      if (launch == launch_ && !stopping_) start_anew(rank);
    });
    return;
  }
  ++started_anew_;
  begin(rank, nullptr);
  if (std::exchange(next_dies_in_restore_, false)) world_.trainer(instances_[rank])->die_in_restore();
}

// Leaves the rank on its machine if possible. Returns false if it has to wait for one.
bool Launcher::place_anew(Rank rank) {
  const std::vector<NodeId> machines = world_.usable_machines();
  if (std::find(machines.begin(), machines.end(), places_[rank]) != machines.end()) return true;
  if (machines.empty() || (world_.awaits_replacement() && world_.random.chance(800))) return false;
  std::map<NodeId, std::size_t> load;
  for (const auto& [each, node] : places_) ++load[node];
  places_[rank] = *std::min_element(machines.begin(), machines.end(),
                                    [&](NodeId left, NodeId right) { return load[left] < load[right]; });
  return true;
}

void Launcher::begin(Rank rank, const Kept* kept) {
  instances_[rank] =
      world_.make_trainer(launch_, rank, places_[rank], kept == nullptr ? std::nullopt : std::optional(*kept));
  world_.trainer(instances_[rank])->start();
}

void Launcher::rejoins(const Trainer& trainer, const Kept& kept) {
  if (trainer.launch != launch_ || stopping_) return;
  world_.event_queue.after(world_.random.between(1, 20), [this, kept, rank = trainer.rank, launch = launch_] {
    if (launch != launch_ || stopping_) return;
    const Machine& machine = world_.machines.at(places_[rank]);
    if (machine.is_lost) return failed(rank);  // and the process with it
    ++rejoined_;
    begin(rank, &kept);
  });
}

// They are stopped, or have not rejoined within the grace: a halt is over, or the others are in a later incarnation.
void Launcher::kill_left_behind() {
  const TimeMs now = world_.event_queue.now();
  for (Trainer* trainer : trainers()) {
    const Agent* agent = world_.agent_on(trainer->node);
    if (agent == nullptr || agent->is_frozen()) continue;
    const core::NodeStatus status = agent->node().status();
    const std::uint64_t own = trainer->incarnation();
    const bool is_over = status.halt.is_over && own <= status.halt.incarnation;
    if (own == 0 || (own >= status.incarnation && !is_over)) {
      behind_.erase(trainer->instance);
    } else if (const auto since = behind_.try_emplace(trainer->instance, now).first->second;
               trainer->process_state() == 'T' || now - since >= halt_grace_ms) {
      world_.trace.line(now, [&] { return text("the launcher kills rank ", trainer->rank, ", left behind"); });
      trainer->die();
    }
  }
}

}  // namespace ckpt::sim
