// I5: memory is bounded, and nobody writes to a slot that is in use for something else.
#include "sim/invariants.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {

std::string place(const Machine& machine, const SlotRef& ref) {
  return text("slot ", describe(ref), " of node ", machine.id);
}

}  // namespace

const Slot& Invariants::writable(const Machine& machine, const SlotRef& ref, const char* what) const {
  const Config& core = world_.settings.core;
  const int spare = world_.settings.can_halt() && ref.shard.ends_with(private_suffix) ? 1 : 0;
  const int configured = ref.rank == held_rank ? core.held_slots : core.local_slots_max + spare;
  const Slot* slot = machine.arena.find(ref);
  if (slot == nullptr || ref.slot >= configured) {
    throw Violation{"I5", text(place(machine, ref), " is ", what, ", although the node has no such slot")};
  }
  const char* in_use = slot->counted     ? "holds a piece"
                       : slot->draining  ? "was dropped but not released"
                       : slot->readers   ? "is being read"
                       : slot->filled_by ? "is being filled by a transfer"
                                         : nullptr;
  if (in_use != nullptr) throw Violation{"I5", text(place(machine, ref), " is ", what, " while it ", in_use)};
  return *slot;
}

void Invariants::granting(const Machine& machine, const SlotRef& ref, std::uint64_t instance) {
  const Slot& slot = writable(machine, ref, "granted");
  if (slot.granted_to != 0 && world_.trainer(slot.granted_to) != nullptr) {
    throw Violation{"I4", text(place(machine, ref), " is granted to a trainer while ",
                               slot.granted_to == instance ? "that trainer has not used its last grant"
                                                           : "another trainer may still write it")};
  }
}

void Invariants::filling(const Machine& machine, const SlotRef& ref) {
  const Slot& slot = writable(machine, ref, "filled by a transfer");
  if (slot.granted_to != 0 && world_.trainer(slot.granted_to) != nullptr) {
    throw Violation{"I4", text(place(machine, ref), " is filled by a transfer while its trainer may still write it")};
  }
}

void Invariants::capturing(const Machine& machine, const SlotRef& ref, std::uint64_t instance) {
  const Slot& slot = writable(machine, ref, "written by its trainer");
  if (slot.granted_to != instance) {
    throw Violation{"I4", text(place(machine, ref), " is written by a trainer to which it is not granted")};
  }
}

void Invariants::serving(const Machine& machine, const SlotRef& ref, const std::string& shard,
                         CheckpointId checkpoint) {
  const Slot* slot = machine.arena.find(ref);
  if (slot == nullptr || !slot->counted || slot->header.checkpoint != checkpoint || slot->header.shard != shard) {
    throw Violation{"I1", text(place(machine, ref), " is named as a source of shard ", shard, " of ",
                               describe(checkpoint), " but does not hold that piece")};
  }
}

void Invariants::dropping(const Machine& machine, const SlotRef& ref) {
  const Slot* slot = machine.arena.find(ref);
  if (slot == nullptr || !slot->counted) {
    throw Violation{"I5", text(place(machine, ref), " is dropped but holds no piece")};
  }
  const CheckpointId checkpoint = slot->header.checkpoint;
  if (!slot->intact()) {
    ++tally_.quarantined;
    history_.damaged(checkpoint);
    history_.lost(machine.id, slot->header, world_.event_queue.now());
    return;
  }
  history_.dropped(machine.id, slot->header);
  if (history_.is_void(checkpoint)) return;
  const CheckpointId kept = history_.newest_committed();
  const Decision* decision = history_.decision(history_.incarnation());
  const bool is_restored =
      decision != nullptr && decision->verdict == Verdict::restore && checkpoint == decision->checkpoint;
  if (checkpoint == kept || (is_restored && checkpoint > kept)) {
    throw Violation{"I2", text("node ", machine.id, " drops shard ", ref.shard, " of ", describe(checkpoint),
                               ", the newest committed checkpoint, before a newer one is committed")};
  }
  const bool can_complete =
      history_.was_whole(checkpoint) && !history_.was_damaged(checkpoint) && !history_.ranks_disagree(checkpoint);
  const bool is_passed_over = decision != nullptr && checkpoint < decision->checkpoint;
  if (checkpoint > kept && can_complete && !is_passed_over) {
    throw Violation{"I2", text("node ", machine.id, " drops shard ", ref.shard, " of ", describe(checkpoint),
                               ", which every rank has captured, before a newer checkpoint is committed")};
  }
}

void Invariants::writing(const Machine& machine, const SlotRef& ref, CheckpointId checkpoint) {
  const Slot* slot = machine.arena.find(ref);
  if (slot == nullptr || !slot->counted || slot->header.checkpoint != checkpoint) {
    throw Violation{"I1", text(place(machine, ref), " is written to storage as a piece of ", describe(checkpoint),
                               " but does not hold one")};
  }
}

void Invariants::releasing(const Machine& machine, Rank rank, const std::string& shard) {
  const auto found = machine.arena.segments.find({rank, shard});
  if (found == machine.arena.segments.end()) return;  // there was never memory for this segment
  for (std::size_t i = 0; i < found->second.size(); ++i) {
    const SlotRef ref{rank, shard, static_cast<std::uint8_t>(i)};
    const Slot& slot = writable(machine, ref, "given back");
    if (slot.granted_to != 0 && world_.trainer(slot.granted_to) != nullptr) {
      throw Violation{"I4", text(place(machine, ref), " is given back while its trainer may still write it")};
    }
  }
}

// Records that a fault destroyed all pieces on the machine.
void Invariants::memory_lost(Machine& machine) {
  machine.arena.for_each([&](const SlotRef&, Slot& slot) {
    if (!slot.findable()) return;
    history_.damaged(slot.header.checkpoint);
    history_.lost(machine.id, slot.header, world_.event_queue.now());
  });
}

}  // namespace ckpt::sim
