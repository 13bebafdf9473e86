// Estimates by random trials how likely the checkpoints in memory survive the loss of nodes. It is for failures that no
// formula covers, such as nodes of one domain that fail together. The same seed gives the same figures on every
// platform. Pure functions.
#pragma once

#include <cstdint>
#include <random>

#include "placement/domains.hpp"
#include "placement/odds/recovery_plan.hpp"

namespace ckpt::placement {

using Random = std::mt19937_64;

// Uniform in [0, below), and the same on every platform, unlike std::uniform_int_distribution.
std::uint32_t random_below(Random& random, std::uint32_t below);
double random_share(Random& random);  // uniform in [0, 1)

// The result of random trials: in what share of them all parts survived, and Wilson's interval around this share. The
// interval contains the true probability in 95 of 100 cases.
struct Estimate {
  std::uint64_t survived = 0;
  std::uint64_t trials = 0;
  double share = 0;  // survived / trials
  double low = 0;    // ends of the interval
  double high = 1;
};
Estimate estimate(std::uint64_t survived, std::uint64_t trials);

// How `lost` nodes are lost together. The first one is any node. With probability `correlation`, each further one is in
// the innermost domain of the node before it, if that domain has a node left. Otherwise it is any node.
struct LossModel {
  std::uint32_t lost = 0;
  double correlation = 0;            // 0: all sets are equally likely, as for survival_odds()
  const Domains* domains = nullptr;  // borrowed; may be null if correlation is 0
};

// Loses nodes by the model in each of `trials` random trials, and counts the trials in which every part of the
// placement still has a holder. Throws std::invalid_argument if the model does not fit the placement.
Estimate sample_survival(const Placement& placement, const LossModel& model, std::uint64_t trials, std::uint64_t seed);

}  // namespace ckpt::placement
