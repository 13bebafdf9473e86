// Incarnations that nobody knows of any more: the store lost their record together with every machine.
#include <algorithm>

#include "sim/invariants.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

void Invariants::incarnation_record_spoiled() {
  incarnation_record_spoiled_ = true;
  newest_incarnation_told_at_ = world_.event_queue.now();
}

// The store broke its word, no machine has memory from when it still told of that incarnation, and storage has nothing
// of it. A single machine that is older must have been asked.
bool Invariants::is_forgotten(std::uint64_t incarnation_record) const {
  if (!incarnation_record_spoiled_ || world_.storage.newest_incarnation() >= incarnation_record) return false;
  return std::all_of(world_.machines.begin(), world_.machines.end(), [&](const auto& entry) {
    const auto& [id, machine] = entry;
    return machine.is_lost || machine.memory_since > newest_incarnation_told_at_;
  });
}

// An incarnation gets a number for the second time only where nobody can know of the first one. That one is then
// forgotten, but what is restored from storage may not pass for the newest commit.
void Invariants::incarnation_opened(std::uint64_t incarnation_record) {
  if (incarnation_record == 0 || incarnation_record > newest_decided_ || !is_forgotten(incarnation_record)) return;
  newest_forgotten_ = history_.newest_committed();
  history_.forget_incarnations(incarnation_record);
  std::erase_if(restored_digests_, [&](const auto& entry) { return entry.first.first >= incarnation_record; });
  newest_whole_ = {};
  newest_decided_ = incarnation_record;
}

}  // namespace ckpt::sim
