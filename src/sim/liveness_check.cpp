#include "sim/liveness_check.hpp"

#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {
constexpr TimeMs look_every_ms = 200;
constexpr TimeMs bound_ms = 90000;
constexpr std::uint64_t commits_wanted = 3;
}  // namespace

void LivenessCheck::after_step() {
  const TimeMs now = world_.event_queue.now();
  if (!world_.faults.is_over() || now < next_look_) return;
  if (quiet_since_ < 0) {
    quiet_since_ = now;
    commits_before_ = world_.invariants.tally().commits;
    world_.trace.line(now, [] { return std::string("*** the faults are over"); });
  }
  next_look_ = now + look_every_ms;
  const Lack lacking = lack();
  reached_ = lacking.invariant == nullptr;
  took_ms_ = now - quiet_since_;
  if (!reached_ && took_ms_ > bound_ms) {
    throw Violation{lacking.invariant, text(bound_ms / 1000, " s after the last fault ", lacking.text)};
  }
}

TimeMs LivenessCheck::calm_ms() const { return quiet_since_ < 0 ? 0 : world_.event_queue.now() - quiet_since_; }

LivenessCheck::Lack LivenessCheck::lack() const {
  if (world_.awaits_replacement()) return {"I6", "a machine is still to be replaced"};
  if (!world_.launcher.everyone_trains()) {
    std::string who;
    for (const Trainer* trainer : world_.launcher.trainers()) {
      if (trainer->stage() != Stage::training) who += text(" ", trainer->rank);
    }
    return {"I6", text("ranks", who, " are not restored")};
  }
  const std::uint64_t commits = world_.invariants.tally().commits - commits_before_;
  if (commits < commits_wanted) return {"I6", text("only ", commits, " checkpoints were committed")};
  if (Lack lacking = redundancy_lack(); lacking.invariant != nullptr) return lacking;
  return memory_lack();
}

LivenessCheck::Lack LivenessCheck::redundancy_lack() const {
  const CheckpointId committed = world_.invariants.history().newest_committed();
  const std::size_t copies = world_.invariants.copies_wanted(committed.incarnation());
  if (!world_.invariants.is_whole(committed, copies)) {
    return {"I6", text(describe(committed), " has not ", copies, " copies of every shard")};
  }
  const bool wants_parity = world_.invariants.wants_parity(committed.incarnation());
  if (wants_parity) {
    const auto covered = world_.invariants.covered(committed, false);
    for (const std::string& shard : world_.invariants.history().shards(committed)) {
      if (!covered.contains(shard)) return {"I6", text("the parity of ", shard, " at ", describe(committed), " lacks")};
    }
  }
  const Agent* leader = world_.agent_on(world_.store.leader().record.node);
  if (leader == nullptr) return {"I6", "there is no leader"};
  const NodeStatus status = leader->node().status();
  if (status.copies_now < copies) {
    return {"I6", text("the leader sees ", status.copies_now, " copies of ", describe(status.committed))};
  }
  if (wants_parity && status.parity_now == 0) {
    return {"I6", text("the leader sees no whole parity of ", describe(status.committed))};
  }
  return {};
}

// Each segment must belong to a rank that trains on this node, or hold a recent piece.
LivenessCheck::Lack LivenessCheck::memory_lack() const {
  const CheckpointId kept = world_.invariants.history().newest_committed();
  for (auto& [id, machine] : world_.machines) {
    for (const auto& [key, segment] : machine.arena.segments) {
      bool is_needed = false;
      for (const Trainer* trainer : world_.trainers_on(id)) is_needed = is_needed || trainer->rank == key.first;
      for (const Slot& slot : segment) {
        is_needed = is_needed || slot.filled_by != 0 || (slot.counted && slot.header.checkpoint >= kept);
      }
      if (!is_needed) {
        return {"I5", text("node ", id, " keeps the segment of ", describe(SlotRef{key.first, key.second, 0}),
                           " although nothing needs it")};
      }
    }
  }
  return {};
}

}  // namespace ckpt::sim
