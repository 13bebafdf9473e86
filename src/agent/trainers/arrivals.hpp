// Arrivals remembers which fetches write to slots now, and of which pieces each rank was notified. A rank that waits
// for its state follows the pieces that arrive (client/early_load.hpp), and learns its layout from all of them
// (client/early_layout.hpp). Only the agent's core thread uses it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/events.hpp"

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

  // A slot that a fetch fills, or that has its piece already.
  struct News {
    core::SlotRef slot;
    CheckpointId checkpoint;
    bool is_whole = false;
  };
  // Returns those of the awaited pieces of which the rank was not notified. From now on, it was. Returns none if no
  // fetch is under way: then the rank needs no news, because it will soon have its state.
  std::vector<News> tell(core::Rank rank, const core::AwaitedPieces& awaited);
  // The rank has its state, or is gone.
  void forget(core::Rank rank) { notified_.erase(rank); }

 private:
  std::map<core::SlotRef, Fetch> fetches_;
  std::map<core::Rank, std::map<core::SlotRef, Fetch>> notified_;  // number 0: of a piece that was whole
};

}  // namespace ckpt::agent
