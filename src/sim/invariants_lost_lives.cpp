// Lives that nobody knows of any more: the store lost their record together with every machine.
#include <algorithm>

#include "sim/invariants.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

void Invariants::life_record_spoiled() {
  life_record_spoiled_ = true;
  newest_life_told_at_ = world_.timeline.now();
}

// The store broke its word, no machine has memory from when it still told of that life, and storage has nothing of it.
// A single machine that is older must have been asked.
bool Invariants::is_forgotten(std::uint64_t life) const {
  if (!life_record_spoiled_ || world_.storage.newest_life() >= life) return false;
  return std::all_of(world_.machines.begin(), world_.machines.end(), [&](const auto& entry) {
    const auto& [id, machine] = entry;
    return machine.is_lost || machine.memory_since > newest_life_told_at_;
  });
}

// A life gets a number for the second time only where nobody can know of the first one. That one is then forgotten, but
// what is restored from storage may not pass for the newest commit.
void Invariants::life_opened(std::uint64_t life) {
  if (life == 0 || life > newest_life_ || !is_forgotten(life)) return;
  newest_forgotten_ = history_.newest_committed();
  history_.forget_lives(life);
  std::erase_if(restored_digests_, [&](const auto& entry) { return entry.first.first >= life; });
  newest_whole_ = {};
  newest_life_ = life;
}

}  // namespace ckpt::sim
