// The odds by trial, for failures that have no closed form: nodes of one domain that fail together. Seeded: the same
// seed gives the same figures everywhere. Pure.
#pragma once

#include <cstdint>
#include <random>

#include "placement/domains.hpp"
#include "placement/recovery_plan.hpp"

namespace ckpt::placement {

using Random = std::mt19937_64;

// Uniform in [0, below); the same on every platform, which std::uniform_int_distribution is not.
std::uint32_t random_below(Random& random, std::uint32_t below);
double random_share(Random& random);  // uniform in [0, 1)

// A share of `trials`, with the interval that contains the true probability in 95 of 100 cases (Wilson's).
struct Estimate {
  std::uint64_t survived = 0;
  std::uint64_t trials = 0;
  double share = 0;
  double low = 0;
  double high = 1;
};
Estimate estimate(std::uint64_t survived, std::uint64_t trials);

// How `lost` nodes come to be lost together: the first is any node; each further one is, with probability
// `correlation`, another node of the innermost domain of the one before it, as long as that has one, and any node
// otherwise.
struct LossModel {
  std::uint32_t lost = 0;
  double correlation = 0;            // 0: all sets are equally likely, as survival_odds has it
  const Domains* domains = nullptr;  // borrowed; needed for a correlation
};

// Throws std::invalid_argument on a model that makes no sense for the placement.
Estimate sample_survival(const Placement& placement, const LossModel& model, std::uint64_t trials, std::uint64_t seed);

}  // namespace ckpt::placement
