#include "sim/transfers.hpp"

#include "sim/world.hpp"

namespace ckpt::sim {

using namespace protocol;

namespace {
constexpr TimeMs patience_ms = 3000;  // without progress
constexpr TimeMs retry_ms = 100;
}  // namespace

void Transfers::start(Machine& to, Agent& agent, const StartFetch& order) {
  const std::uint64_t id = next_++;
  active_[id] = Transfer{to.id, agent.id(), order, 0, {}, false};
  Slot& slot = *to.arena.find(order.slot);
  slot.sealed = false;
  slot.filled_by = id;
  slot.bytes = world_.random.next();  // half-written from now on
  const bool is_stored = order.source == storage_node;
  const TimeMs duration = is_stored ? world_.random.between(1, 4 * world_.settings.transfer_ms) : 0;
  world_.timeline.after(duration + world_.random.between(1, 5), [this, id, is_stored] {
    if (is_stored) return read_stored(id);
    serve(id, 0);
  });
}

bool Transfers::flows(const Transfer& transfer) const {
  const Agent* source = world_.agent_on(transfer.order.source);
  return source != nullptr && !source->is_frozen() &&
         (transfer.from_agent == 0 || transfer.from_agent == source->id()) &&
         world_.network.open_both_ways(transfer.order.source, transfer.to);
}

void Transfers::serve(std::uint64_t id, TimeMs waited_ms) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  Transfer& transfer = found->second;
  if (!flows(transfer)) {
    if (waited_ms >= patience_ms) return end_after(0, id, FetchResult::failed);
    world_.timeline.after(retry_ms, [this, id, waited_ms] { serve(id, waited_ms + retry_ms); });
    return;
  }
  Agent& source = *world_.agent_on(transfer.order.source);
  const SlotRef* ref = source.node().find(transfer.order.piece.shard, transfer.order.piece.version);
  if (ref == nullptr) return end_after(world_.random.between(1, 5), id, FetchResult::failed);
  transfer.from_agent = source.id();
  transfer.source_slot = *ref;
  world_.invariants.serving(world_.machines.at(transfer.order.source), *ref, transfer.order.piece);
  ++world_.machines.at(transfer.order.source).arena.find(*ref)->readers;
  const TimeMs typical = world_.settings.transfer_ms;
  const TimeMs duration = world_.random.between(typical / 2, typical * 2);
  world_.timeline.after(duration, [this, id] { arrive(id, 0); });
}

void Transfers::read_stored(std::uint64_t id) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  const Transfer& transfer = found->second;
  const PieceInfo& piece = transfer.order.piece;
  if (world_.storage.is_out()) return end_after(0, id, FetchResult::failed);
  const std::uint64_t bytes = world_.storage.read(piece) ^ (transfer.flip ? 1 : 0);
  const bool intact = bytes == piece.root_digest;
  Slot& slot = *world_.machines.at(transfer.to).arena.find(transfer.order.slot);
  slot.bytes = bytes;
  if (intact) {
    slot.header = piece;
    slot.dropped = {};
    slot.sealed = true;
  }
  end_after(0, id, intact ? FetchResult::complete : FetchResult::corrupt);
}

void Transfers::arrive(std::uint64_t id, TimeMs waited_ms) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  Transfer& transfer = found->second;
  const Agent* receiver = world_.agent(transfer.to, transfer.to_agent);
  if (receiver != nullptr && receiver->is_frozen()) {
    world_.timeline.after(retry_ms, [this, id, waited_ms] { arrive(id, waited_ms); });
    return;
  }
  if (!flows(transfer)) {
    const Agent* source = world_.agent_on(transfer.order.source);
    const bool source_died = source == nullptr || source->id() != transfer.from_agent;
    if (source_died || waited_ms >= patience_ms) return end_after(0, id, FetchResult::failed);
    world_.timeline.after(retry_ms, [this, id, waited_ms] { arrive(id, waited_ms + retry_ms); });
    return;
  }
  std::uint64_t bytes = world_.machines.at(transfer.order.source).arena.find(transfer.source_slot)->bytes;
  if (transfer.flip) bytes ^= 1;
  const bool intact = bytes == transfer.order.piece.root_digest;
  Slot& slot = *world_.machines.at(transfer.to).arena.find(transfer.order.slot);
  slot.bytes = bytes;
  if (intact) {
    slot.header = transfer.order.piece;
    slot.dropped = {};
    slot.sealed = true;
  } else {
    // The receiver says so, and the source looks at its own piece.
    world_.agent_on(transfer.order.source)->later(world_.random.between(1, 5), [ref = transfer.source_slot](Agent& a) {
      a.verify(ref);
    });
  }
  end_after(0, id, intact ? FetchResult::complete : FetchResult::corrupt);
}

void Transfers::end_after(TimeMs delay_ms, std::uint64_t id, FetchResult result) {
  world_.timeline.after(delay_ms, [this, id, result] { end(id, result); });
}

void Transfers::end(std::uint64_t id, FetchResult result) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  Transfer transfer = found->second;
  active_.erase(found);
  stop_serving(transfer);
  Slot* slot = world_.machines.at(transfer.to).arena.find(transfer.order.slot);
  if (slot != nullptr && result != FetchResult::complete) slot->sealed = false;
  if (Agent* agent = world_.agent(transfer.to, transfer.to_agent)) {
    agent->later(0, [fetch = transfer.order.fetch, ref = transfer.order.slot, result](Agent& a) {
      a.fetch_ended(fetch, ref, result);
    });
  }
}

void Transfers::stop_serving(Transfer& transfer) {
  if (transfer.from_agent == 0) return;
  if (Agent* source = world_.agent(transfer.order.source, transfer.from_agent)) {
    source->later(0, [ref = transfer.source_slot](Agent& a) { a.unpin(ref); });
  }
  transfer.from_agent = 0;
}

void Transfers::cancel(NodeId to, std::uint64_t agent, std::uint64_t fetch) {
  for (const auto& [id, transfer] : active_) {
    if (transfer.to != to || transfer.to_agent != agent || transfer.order.fetch != fetch) continue;
    end_after(world_.random.between(0, 20), id, FetchResult::failed);
    return;
  }
}

// Its own fetches end with it; those it served run into the dead end later.
void Transfers::agent_died(NodeId node, std::uint64_t agent) {
  for (auto it = active_.begin(); it != active_.end();) {
    const bool receiver_died = it->second.to == node && it->second.to_agent == agent;
    if (receiver_died) stop_serving(it->second);
    it = receiver_died ? active_.erase(it) : std::next(it);
  }
}

}  // namespace ckpt::sim
