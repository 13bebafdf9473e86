#include "placement/recovery.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ckpt::placement {
namespace {

bool has_live_holder(const Placement& placement, const LostNodes& lost, std::uint32_t home) {
  const auto holders = placement.holders(home);
  return std::any_of(holders.begin(), holders.end(), [&](std::uint32_t node) { return !lost.contains(node); });
}

class Sources {
 public:
  Sources(const Placement& placement, const LostNodes& lost)
      : placement_(placement), lost_(lost), sent_shards_(placement.nodes(), 0) {}

  // Needs a live holder.
  Transfer to(std::uint32_t target, std::uint32_t home) {
    std::uint32_t source = target;
    for (const auto node : placement_.holders(home)) {
      if (lost_.contains(node)) continue;
      if (source == target || sent_shards_[node] < sent_shards_[source]) source = node;
    }
    sent_shards_[source] += 1.0 / placement_.part(home).range.of;
    return {home, source, target};
  }

 private:
  const Placement& placement_;
  const LostNodes& lost_;
  std::vector<double> sent_shards_;
};

bool holds(const Placement& placement, std::uint32_t node, std::uint32_t home) {
  const auto holders = placement.holders(home);
  return std::find(holders.begin(), holders.end(), node) != holders.end();
}

}  // namespace

void LostNodes::add(std::uint32_t node) {
  if (node >= is_lost_.size()) {
    throw std::invalid_argument("node " + std::to_string(node) + " cannot be lost: there are only 0 to " +
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

RecoveryPlan plan_recovery(const Placement& placement, const LostNodes& lost) {
  RecoveryPlan plan;
  std::vector<bool> shard_is_lost(placement.shards(), false);
  for (const auto node : lost.list()) {
    for (const auto home : placement.stored_by(node)) {
      if (!has_live_holder(placement, lost, home)) shard_is_lost[placement.part(home).shard] = true;
    }
  }

  Sources sources(placement, lost);
  for (std::uint32_t shard = 0; shard < placement.shards(); ++shard) {
    if (shard_is_lost[shard]) {
      plan.lost_shards.push_back(shard);
      continue;
    }
    const auto owners = placement.owners(shard);  // the homes of its parts, too
    for (const auto owner : owners) {
      for (const auto home : owners) {
        const bool has_it = !lost.contains(owner) && holds(placement, owner, home);
        if (!has_it) plan.restore.push_back(sources.to(owner, home));
      }
    }
  }
  for (const auto node : lost.list()) {
    for (const auto home : placement.stored_by(node)) {
      const std::uint32_t shard = placement.part(home).shard;
      const auto owners = placement.owners(shard);
      const bool owned = std::find(owners.begin(), owners.end(), node) != owners.end();  // then restored above
      if (!owned && !shard_is_lost[shard]) plan.protect.push_back(sources.to(node, home));
    }
  }
  return plan;
}

}  // namespace ckpt::placement
