#include "sim/storage.hpp"

#include <algorithm>

#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {
constexpr const char* unreachable = "storage does not answer";
}

bool Storage::is_out() const { return world_.event_queue.now() < out_until_; }

TimeMs Storage::takes_ms() {
  const TimeMs typical = 2 * world_.settings.transfer_ms;
  return world_.random.between(typical / 2, typical * 2);
}

// ---- Requests of agents ----

void Storage::list(Agent& agent) {
  agent.later(world_.random.between(1, 50), [this](Agent& asker) {
    StorageListed listed;
    if (is_out()) {
      listed.trouble = unreachable;
      return asker.handle(listed);
    }
    for (const auto& [checkpoint, pieces] : pieces_) {
      listed.newest_incarnation = std::max(listed.newest_incarnation, checkpoint.incarnation());
      const auto step = steps_.find(checkpoint);
      if (step == steps_.end()) {
        if (!pieces.empty()) listed.unusable.push_back(text(describe(checkpoint), " was never finished"));
        continue;
      }
      for (const std::string& shard : step->second.shards) listed.pieces.push_back(pieces.at(shard).info);
    }
    asker.handle(listed);
  });
}

// The slots are read until the end, even if the write fails.
void Storage::write(Machine& machine, Agent& agent, const StartWrite& order) {
  const CheckpointId discarded = order.discarded.checkpoint;
  for (const std::string& shard : order.discarded.shards) {
    if (!steps_.contains(discarded)) pieces_[discarded].erase(shard);
  }
  for (const SlotRef& ref : order.slots) {
    world_.invariants.writing(machine, ref, order.checkpoint);
    ++machine.arena.find(ref)->readers;
  }
  agent.later(takes_ms(), [this, node = machine.id, id = agent.id(), order](Agent&) { finish_write(node, id, order); });
}

void Storage::finish_write(NodeId node, std::uint64_t agent_id, const StartWrite& order) {
  Machine& machine = world_.machines.at(node);
  Agent& agent = *world_.agent(node, agent_id);
  WriteEnded ended{order.checkpoint, is_out() ? unreachable : ""};
  for (const SlotRef& ref : order.slots) {
    const Slot& slot = *machine.arena.find(ref);
    if (!slot.intact()) ended.trouble = "damaged in memory";
    // A part of a failed write may be on storage all the same.
    if (!is_out() && slot.intact()) pieces_[order.checkpoint][slot.header.shard] = {slot.header, slot.bytes};
  }
  for (const SlotRef& ref : order.slots) {
    agent.unpin(ref);
    if (!ended.trouble.empty()) agent.verify(ref);
  }
  agent.handle(ended);
}

void Storage::commit(Agent& agent, NodeId node, const FinalizeCheckpoint& order) {
  world_.invariants.storing(world_.machines.at(node), order);
  agent.later(world_.random.between(1, 100), [this, order](Agent& asker) {
    const auto found = pieces_.find(order.checkpoint);
    const bool all_there = std::all_of(order.shards.begin(), order.shards.end(), [&](const std::string& shard) {
      return found != pieces_.end() && found->second.contains(shard);
    });
    if (!is_out() && all_there) {
      steps_.try_emplace(order.checkpoint, Step{order.shards, world_.event_queue.now(), false});
      ever_whole_.insert(order.checkpoint);
    }
    asker.handle(FinalizeEnded{order.checkpoint, is_out() ? unreachable : all_there ? "" : "a piece is missing"});
  });
}

std::uint64_t Storage::read(const PieceInfo& piece) const {
  const auto step = steps_.find(piece.checkpoint);
  if (step == steps_.end()) return 0;
  const auto& pieces = pieces_.at(piece.checkpoint);
  const auto found = pieces.find(piece.shard);
  return found == pieces.end() ? 0 : found->second.bytes;
}

// ---- Faults ----

void Storage::outage(TimeMs duration_ms) { out_until_ = std::max(out_until_, world_.event_queue.now() + duration_ms); }

bool Storage::damage_newest() {
  if (steps_.empty()) return false;
  auto& [checkpoint, step] = *steps_.rbegin();
  pieces_.at(checkpoint).at(world_.random.pick(step.shards)).bytes ^= 4;
  step.is_damaged = true;
  return true;
}

void Storage::clear() {
  pieces_.clear();
  steps_.clear();
}

CheckpointId Storage::newest_sound(TimeMs for_ms) const {
  for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) {
    if (!it->second.is_damaged && world_.event_queue.now() - it->second.whole_since >= for_ms) return it->first;
  }
  return {};
}

bool Storage::is_calm(TimeMs for_ms) const { return world_.event_queue.now() >= out_until_ + for_ms; }

}  // namespace ckpt::sim
