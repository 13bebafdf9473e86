#include "sim/launcher.hpp"

#include <algorithm>

#include "sim/world.hpp"

namespace ckpt::sim {

namespace {
constexpr TimeMs watch_ms = 1000;
// The job hangs if it trains and makes no progress for so long. A halt that ends it comes before.
constexpr TimeMs hang_ms = 8000;
constexpr TimeMs hang_in_spite_of_halts_ms = 20000;
constexpr int losses_until_given_up = 2;
}  // namespace

Launcher::Launcher(World& world) : world_(world), ranks_(world.settings.ranks), next_ranks_(ranks_) {}

void Launcher::start() {
  watch();
  launch_all();
}

std::vector<Trainer*> Launcher::trainers() const {
  std::vector<Trainer*> living;
  for (const std::uint64_t instance : instances_) {
    if (Trainer* trainer = world_.trainer(instance)) living.push_back(trainer);
  }
  return living;
}

bool Launcher::everyone_has_asked() const {
  const auto all = trainers();
  return all.size() == ranks_ &&
         std::all_of(all.begin(), all.end(), [](const Trainer* trainer) { return trainer->has_asked(); });
}

bool Launcher::everyone_trains() const {
  const auto all = trainers();
  return all.size() == ranks_ && std::all_of(all.begin(), all.end(), [](const Trainer* trainer) {
           return trainer->stage() == Stage::training;
         });
}

void Launcher::watch() {
  world_.event_queue.after(watch_ms, [this] { watch(); });
  const TimeMs now = world_.event_queue.now();
  const TimeMs most_ms = world_.settings.can_rejoin() ? hang_in_spite_of_halts_ms : hang_ms;
  if (!stopping_ && everyone_trains() && now - std::max(progress_at_, looks_away_until_) > most_ms) restart();
  if (!stopping_ && world_.settings.can_rejoin() && now >= looks_away_until_) kill_left_behind();
}

// ---- Training in step ----

void Launcher::restored(const Trainer& trainer) {
  if (trainer.launch != launch_) return;
  ++restores_;
  losses_in_a_row_ = 0;
  progress_at_ = world_.event_queue.now();
}

void Launcher::arrived(const Trainer& trainer, std::int64_t k) {
  if (trainer.launch != launch_ || stopping_) return;
  const std::pair step(trainer.incarnation(), k);
  if (++arrived_[step] < ranks_) return;
  arrived_.erase(step);
  if (world_.communications.keeps([this, step] { update_all(step.first, step.second); })) return;
  update_all(step.first, step.second);
}

void Launcher::update_all(std::uint64_t incarnation, std::int64_t k) {
  progress_at_ = world_.event_queue.now();
  for (Trainer* each : trainers()) {
    if (each->incarnation() == incarnation) each->update(k);
  }
}

// ---- Restarts ----

void Launcher::trainer_died(const Trainer& trainer) {
  if (trainer.launch != launch_) return;
  const TimeMs now = world_.event_queue.now();
  if (now >= looks_away_until_) return failed(trainer.rank);
  world_.event_queue.after(looks_away_until_ - now, [this, launch = launch_, rank = trainer.rank] {
    if (launch == launch_) failed(rank);
  });
}

void Launcher::look_away(TimeMs for_ms) { looks_away_until_ = world_.event_queue.now() + for_ms; }

void Launcher::state_is_lost() {
  if (lost_in_launch_ == launch_) return;
  lost_in_launch_ = launch_;
  ++losses_in_a_row_;
  if (world_.settings.can_rejoin()) restart();
}

void Launcher::restart_with(Rank ranks, unsigned split) {
  next_ranks_ = ranks;
  next_split_ = split;
  restart();
}

void Launcher::restart() {
  if (stopping_) return;
  stopping_ = true;
  world_.event_queue.after(world_.random.between(20, 800), [this] { stop_all(); });
}

void Launcher::stop_all() {
  const bool leaves_behind = leaves_behind_;
  leaves_behind_ = false;
  for (Trainer* trainer : trainers()) {
    if (leaves_behind && world_.random.chance(500)) {
      // Somebody finds and kills the trainer later.
      world_.event_queue.after(world_.random.between(1000, 10000), [&world = world_, instance = trainer->instance] {
        if (Trainer* left = world.trainer(instance)) left->die();
      });
    } else {
      trainer->die();
    }
  }
  if (losses_in_a_row_ >= losses_until_given_up) {
    losses_in_a_row_ = 0;
    ++give_ups_;
    world_.give_up_job();
  }
  // Some restarts take long, so that nodes notice a lost machine before the ranks come back.
  const TimeMs slowness_ms = world_.settings.core.standby && world_.random.chance(700) ? 5000 : 0;
  world_.event_queue.after(world_.random.between(50, 1500) + slowness_ms + losses_in_a_row_ * 2000,
                           [this] { launch_all(); });
}

void Launcher::launch_all() {
  const bool short_of_machines = world_.usable_machines().size() < std::min<std::size_t>(2, world_.settings.nodes);
  if (short_of_machines || (world_.awaits_replacement() && world_.random.chance(800))) {
    world_.event_queue.after(300, [this] { launch_all(); });
    return;
  }
  ++launch_;
  ranks_ = next_ranks_;
  split_ = next_split_;
  has_resplit_ = has_resplit_ || split_ != 0;
  stopping_ = false;
  arrived_.clear();
  failures_.clear();
  behind_.clear();
  world_.communications.forget_everything();
  instances_.clear();
  progress_at_ = world_.event_queue.now();
  place_ranks();
  for (const auto& [rank, node] : places_) instances_.push_back(world_.make_trainer(launch_, rank, node));
  for (Trainer* trainer : trainers()) trainer->start();
}

// Leaves ranks on their machines if possible. Otherwise places them on others. No machine gets more than its share.
void Launcher::place_ranks() {
  std::vector<NodeId> machines = world_.usable_machines();
  world_.random.shuffle(machines);
  const auto per_machine = std::max<std::size_t>((ranks_ + machines.size() - 1) / machines.size(),
                                                 (ranks_ + world_.settings.nodes - 1) / world_.settings.nodes);
  const bool permuted = launch_ > 1 && world_.random.chance(250);
  std::map<NodeId, std::size_t> load;
  std::map<Rank, NodeId> places;
  for (const auto& [rank, node] : places_) {
    const bool is_usable = std::find(machines.begin(), machines.end(), node) != machines.end();
    if (permuted || !is_usable || rank >= ranks_ || load[node] >= per_machine) continue;
    places[rank] = node;
    ++load[node];
  }
  for (Rank rank = 0; rank < ranks_; ++rank) {
    if (places.contains(rank)) continue;
    const auto emptiest = std::min_element(machines.begin(), machines.end(),
                                           [&](NodeId left, NodeId right) { return load[left] < load[right]; });
    places[rank] = *emptiest;
    ++load[*emptiest];
  }
  places_ = std::move(places);
}

}  // namespace ckpt::sim
