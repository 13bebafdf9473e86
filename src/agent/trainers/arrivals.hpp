// Arrivals remembers which fetches write to slots now, and which of them each rank was notified of. A rank that waits
// for its state follows these slots (client/early_load.hpp). Only the agent's core thread uses it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "core/types.hpp"

namespace ckpt::agent {

class Arrivals {
 public:
  struct Fetch {
    std::uint64_t number = 0;
    CheckpointId checkpoint;
  };
  // A fetch writes to this slot from now on. The fetch with this number has ended.
  void began(const core::SlotRef& slot, const Fetch& fetch) { fetches_.insert_or_assign(slot, fetch); }
  void ended(std::uint64_t number) {
    std::erase_if(fetches_, [&](const auto& entry) { return entry.second.number == number; });
  }

  // A slot that a fetch fills.
  struct News {
    core::SlotRef slot;
    CheckpointId checkpoint;
  };
  // Returns those of `awaited` to which a fetch writes of which the rank was not notified. From now on, it was.
  std::vector<News> tell(core::Rank rank, const std::vector<core::SlotRef>& awaited);
  // The rank has its state, or is gone.
  void forget(core::Rank rank) { notified_.erase(rank); }

 private:
  std::map<core::SlotRef, Fetch> fetches_;
  std::map<core::Rank, std::set<std::uint64_t>> notified_;  // numbers of fetches
};

}  // namespace ckpt::agent
