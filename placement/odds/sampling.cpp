#include "placement/odds/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

namespace ckpt::placement {
namespace {

class Sampler {
 public:
  Sampler(const LossModel& model, std::uint32_t nodes, std::uint64_t seed)
      : model_(model), nodes_(nodes), random_(seed) {
    if (model.correlation <= 0) return;
    members_.resize(model.domains->count());
    for (std::uint32_t node = 0; node < nodes; ++node) {
      const auto path = model.domains->path(node);
      if (!path.empty()) members_[path.back()].push_back(node);
    }
  }

  void draw(LostNodes& lost) {
    lost.clear();
    while (lost.list().size() < model_.lost) {
      if (!lost.list().empty() && random_share(random_) < model_.correlation && add_neighbour(lost)) continue;
      add_any(lost);
    }
  }

 private:
  void add_any(LostNodes& lost) {
    std::uint32_t node = random_below(random_, nodes_);
    while (lost.contains(node)) node = random_below(random_, nodes_);
    lost.add(node);
  }

  bool add_neighbour(LostNodes& lost) {
    const auto path = model_.domains->path(lost.list().back());
    if (path.empty()) return false;
    candidates_.clear();
    for (const auto node : members_[path.back()]) {
      if (!lost.contains(node)) candidates_.push_back(node);
    }
    if (candidates_.empty()) return false;
    lost.add(candidates_[random_below(random_, static_cast<std::uint32_t>(candidates_.size()))]);
    return true;
  }

  LossModel model_;
  std::uint32_t nodes_;
  Random random_;
  std::vector<std::vector<std::uint32_t>> members_;  // of each innermost domain
  std::vector<std::uint32_t> candidates_;
};

}  // namespace

std::uint32_t random_below(Random& random, std::uint32_t below) {
  // Returns the high half of a 32 x 32 bit product. Draws again in the few cases that would favour some values
  // (Lemire's method).
  const std::uint32_t uneven = -below % below;
  while (true) {
    const std::uint64_t product = (random() >> 32) * below;
    if (static_cast<std::uint32_t>(product) >= uneven) return static_cast<std::uint32_t>(product >> 32);
  }
}

double random_share(Random& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

Estimate estimate(std::uint64_t survived, std::uint64_t trials) {
  if (trials == 0) return {};
  constexpr double z = 1.959963984540054;
  const auto n = static_cast<double>(trials);
  const double share = static_cast<double>(survived) / n;
  const double middle = (share + z * z / (2 * n)) / (1 + z * z / n);
  const double half = z / (1 + z * z / n) * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  return {survived, trials, share, std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

Estimate sample_survival(const Placement& placement, const LossModel& model, std::uint64_t trials, std::uint64_t seed) {
  const std::uint32_t nodes = placement.nodes();
  if (model.lost > nodes) {
    throw std::invalid_argument(std::to_string(model.lost) + " lost nodes are too many: there are only " +
                                std::to_string(nodes) + " nodes");
  }
  if (!(model.correlation >= 0 && model.correlation <= 1)) {
    throw std::invalid_argument("the correlation must be from 0 to 1, not " + std::to_string(model.correlation));
  }
  if (model.correlation > 0 && (model.domains == nullptr || model.domains->nodes() != nodes)) {
    throw std::invalid_argument("the correlation is above 0, but failure domains are not known for all " +
                                std::to_string(nodes) + " nodes: name them (--domains)");
  }
  Sampler sampler(model, nodes, seed);
  LostNodes lost(nodes);
  std::uint64_t survived = 0;
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    sampler.draw(lost);
    survived += survives(placement, lost) ? 1 : 0;
  }
  return estimate(survived, trials);
}

}  // namespace ckpt::placement
