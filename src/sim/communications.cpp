#include "sim/communications.hpp"

#include <algorithm>

#include "sim/world.hpp"

namespace ckpt::sim {

// A last rank without a neighbour has no exchanges. Every second pair has one more than the others.
std::uint32_t Communications::exchanges(Rank rank) const {
  const Settings& settings = world_.settings;
  if (!settings.watches || !settings.has_stages) return settings.watches ? settings.exchanges : 0;
  const Group group = group_of(rank);
  return group.first == group.second ? 0 : settings.exchanges + rank / 2 % 2;
}

Communications::Group Communications::group_of(Rank rank) const {
  const Rank last = world_.launcher.ranks() - 1;
  if (!world_.settings.has_stages) return {0, last};
  return {rank / 2 * 2, std::min(rank / 2 * 2 + 1, last)};
}

void Communications::join(const Trainer& trainer, std::int64_t k, std::uint32_t number) {
  if (trainer.launch != world_.launcher.launch() || world_.launcher.is_between_launches()) return;
  const Group group = group_of(trainer.rank);
  const std::uint64_t incarnation = trainer.incarnation();
  Rank& joined = joined_[{group, incarnation, k, number}];
  if (++joined <= group.second - group.first) return;
  joined_.erase({group, incarnation, k, number});
  if (hung_ && hung_->first <= group.first && group.second <= hung_->second) {
    kept_.emplace_back([=, this] { complete(group, incarnation, k, number); });
  } else {
    complete(group, incarnation, k, number);
  }
}

void Communications::complete(Group group, std::uint64_t incarnation, std::int64_t k, std::uint32_t number) {
  for (Trainer* each : world_.launcher.trainers()) {
    if (each->incarnation() != incarnation) continue;
    if (group.first <= each->rank && each->rank <= group.second) each->communicated(k, number);
  }
}

void Communications::hang(bool all_ranks, Rank rank) {
  lately_ = all_ranks ? Group{0, world_.launcher.ranks() - 1} : group_of(rank);
  hung_ = lately_;
}

void Communications::let_go() {
  if (hung_) world_.watch_check.let_go();
  hung_.reset();
  for (const auto& action : std::exchange(kept_, {})) action();
}

bool Communications::keeps(const std::function<void()>& action) {
  const bool is_all = hung_ && *hung_ == Group{0, world_.launcher.ranks() - 1};
  if (is_all) kept_.push_back(action);
  return is_all;
}

void Communications::forget_everything() {
  joined_.clear();
  kept_.clear();
  if (hung_) world_.watch_check.let_go();
  hung_.reset();
}

}  // namespace ckpt::sim
