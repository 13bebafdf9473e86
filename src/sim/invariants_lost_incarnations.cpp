// Excuses for incarnations and decisions of which nobody knows any more: the store lost their record, and all machines
// were lost with it, or no agent had read it.
#include <algorithm>

#include "sim/invariants.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

void Invariants::incarnation_read(const IncarnationRecord& record) {
  if (record.decision.verdict == Verdict::undecided) return;
  newest_decided_read_ = std::max(newest_decided_read_, record.incarnation);
}

// If the store loses a decision before any node has read it, the decision counts as never made. Not even the node that
// asked for it knows that it was made.
void Invariants::incarnation_record_spoiled() {
  incarnation_record_spoiled_ = true;
  incarnation_record_spoiled_at_ = world_.event_queue.now();
  newest_incarnation_read_at_ = world_.event_queue.now();
  const std::uint64_t decided = history_.incarnation();
  const IncarnationRecord& left = world_.store.incarnation_record().record;
  const bool has_it = left.incarnation == decided && left.decision.verdict != Verdict::undecided;
  if (decided > newest_decided_read_ && !has_it) history_.forget_decision(decided);
}

// True if nobody can know of the incarnation: the store lost its record, no machine has memory from before that, and
// storage has no piece of it. If there is a single machine with older memory, the leader must ask it.
bool Invariants::is_forgotten(std::uint64_t incarnation) const {
  if (!incarnation_record_spoiled_ || world_.storage.newest_incarnation() >= incarnation) return false;
  return std::all_of(world_.machines.begin(), world_.machines.end(), [&](const auto& entry) {
    const auto& [id, machine] = entry;
    return machine.is_lost || machine.memory_since > newest_incarnation_read_at_;
  });
}

// An incarnation may have the number of an earlier one only if nobody can know of the earlier one. The earlier one is
// then forgotten. But a checkpoint restored from storage must not count as the newest commit.
void Invariants::incarnation_opened(std::uint64_t incarnation) {
  if (incarnation == 0 || incarnation > newest_decided_ || !is_forgotten(incarnation)) return;
  newest_forgotten_ = history_.newest_committed();
  history_.forget_incarnations(incarnation);
  std::erase_if(restored_digests_, [&](const auto& entry) { return entry.first.first >= incarnation; });
  newest_whole_ = {};
  newest_decided_ = incarnation;
}

}  // namespace ckpt::sim
