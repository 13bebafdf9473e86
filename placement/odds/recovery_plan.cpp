#include "placement/odds/recovery_plan.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ckpt::placement {
namespace {

bool has_live_holder(const Placement& placement, const LostNodes& lost, std::uint32_t home) {
  const auto holders = placement.holders(home);
  return std::any_of(holders.begin(), holders.end(), [&](std::uint32_t node) { return !lost.contains(node); });
}

}  // namespace

void LostNodes::add(std::uint32_t node) {
  if (node >= is_lost_.size()) {
    throw std::invalid_argument("node " + std::to_string(node) + " cannot be lost: nodes are numbered from 0 to " +
                                std::to_string(is_lost_.size() - 1));
  }
  if (is_lost_[node] != 0) return;
  is_lost_[node] = 1;
  list_.push_back(node);
}

void LostNodes::clear() {
  for (const auto node : list_) is_lost_[node] = 0;
  list_.clear();
}

bool survives(const Placement& placement, const LostNodes& lost) {
  if (lost.list().size() < placement.pattern().holders_per_part()) return true;
  return std::all_of(lost.list().begin(), lost.list().end(), [&](std::uint32_t node) {
    const auto parts = placement.stored_by(node);
    return std::all_of(parts.begin(), parts.end(),
                       [&](std::uint32_t home) { return has_live_holder(placement, lost, home); });
  });
}

}  // namespace ckpt::placement
