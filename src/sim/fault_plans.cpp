// Faults of runs that have more than a plain job: halts, ranks that rejoin, repeated updates. They strike among the
// others, which stay the same.
#include <array>

#include "sim/faults.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

// Not between a fault and its prelude.
void Faults::plan_anywhere(const std::vector<Plan>& plans, Random& random) {
  std::vector<std::size_t> places = {0};
  for (std::size_t i = 0; i < plan_.size(); ++i)
    if (plan_[i].is_last) places.push_back(i + 1);
  plan_.insert(plan_.begin() + static_cast<std::ptrdiff_t>(random.pick(places)), plans.begin(), plans.end());
}

// Among the others, which stay the same: faults that halt the job, and any fault while it is halted.
void Faults::plan_halts() {
  Random random(mix(world_.settings.seed, hash_of("halts")));
  for (std::uint64_t left = 1 + random.below(3); left > 0; --left) {
    Plan plan;
    const bool is_replacing = world_.settings.core.standby && random.chance(600);
    do {
      plan.fault = static_cast<Fault>(first_halting_fault + random.below(halting_faults));
      plan.phase = is_replacing ? Phase::replacing : static_cast<Phase>(random.below(first_phases));
    } while (!can_come(plan.phase) || !is_possible(plan.fault, plan.phase));
    plan_anywhere(with_prelude(plan, random), random);
  }
  constexpr std::array<Fault, 3> causes = {Fault::rank_dies, Fault::rank_stops, Fault::rank_spins};
  for (std::uint64_t left = 1 + random.below(3); left > 0; --left) {
    const Plan cause{causes[random.below(causes.size())], Phase::idle, false};
    const std::size_t drawn = first_faults + hard_faults + (world_.settings.elastic ? 1 : 0);
    plan_anywhere({cause, {static_cast<Fault>(random.below(drawn)), Phase::halting}}, random);
  }
}

// Likewise: faults of ranks that rejoin, and any fault while some do.
void Faults::plan_rejoins() {
  Random random(mix(world_.settings.seed, hash_of("rejoins")));
  for (std::uint64_t left = 1 + random.below(3); left > 0; --left) {
    Plan plan;
    do {
      plan.fault = static_cast<Fault>(first_rejoining_fault + random.below(rejoining_faults));
      plan.phase = static_cast<Phase>(random.below(first_phases));
    } while (!can_come(plan.phase) || !is_possible(plan.fault, plan.phase));
    plan_anywhere(with_prelude(plan, random), random);
  }
  constexpr std::array<Fault, 2> causes = {Fault::rank_dies, Fault::rank_stops};
  for (std::uint64_t left = 1 + random.below(3); left > 0; --left) {
    const Plan cause{causes[random.below(causes.size())], Phase::idle, false};
    const std::size_t drawn = first_faults + hard_faults + (world_.settings.elastic ? 1 : 0);
    Fault fault = Fault::trainer_crash;
    do {
      fault = static_cast<Fault>(random.below(drawn));
    } while (!is_possible(fault, Phase::rejoining));
    plan_anywhere({cause, {fault, Phase::rejoining}}, random);
  }
}

// Likewise: faults of repeated updates, and any fault while a node repeats one.
void Faults::plan_repeats() {
  Random random(mix(world_.settings.seed, hash_of("repeats")));
  for (std::uint64_t left = 1 + random.below(4); left > 0; --left) {
    constexpr std::array<Fault, 3> own = {Fault::update_disturbed, Fault::repeat_wrong, Fault::bit_flip_wire};
    const auto any = static_cast<Fault>(random.below(first_faults + hard_faults));
    plan_anywhere({{random.chance(600) ? own[random.below(own.size())] : any, Phase::repeating}}, random);
  }
}

}  // namespace ckpt::sim
