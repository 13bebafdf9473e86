#include "sim/transfers.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/chain_order.hpp"
#include "core/parity_pieces.hpp"
#include "sim/world.hpp"

namespace ckpt::sim {

using namespace core;

namespace {
constexpr TimeMs wait_limit_ms = 3000;  // a transfer without progress fails after this time
constexpr TimeMs retry_ms = 100;
constexpr TimeMs arrival_wait_ms = 1000;  // for a piece that may be about to arrive at its source
constexpr TimeMs interruption_ms = 2000;  // for a source that has begun to receive a piece, and failed
constexpr TimeMs quiet_ms = 30'000;       // nothing is coming any more to a node at which so long nothing arrived

// The digest of the bytes of parity. It is the same whenever and wherever the same parity is encoded.
std::uint64_t parity_digest(const PieceInfo& parity) {
  std::uint64_t digest = mix(hash_of("parity"), parity.parity_manifest.member);
  for (const ParitySource& parity_source : parity.parity_manifest.sources)
    digest = mix(digest, parity_source.root_digest);
  return digest == 0 ? 1 : digest;
}
}  // namespace

void Transfers::start(Machine& to, Agent& agent, const StartFetch& order) {
  const std::uint64_t id = next_++;
  active_[id] = Transfer{to.id, agent.id(), order, {}};
  Slot& slot = *to.arena.find(order.slot);
  slot.sealed = false;
  slot.filled_by = id;
  slot.record.reset();
  slot.bytes = world_.random.next();  // from now on the slot is half written
  if (restores(active_[id]) && !failed_.contains(piece_of(active_[id])))
    arrived_at_[agent.id()] = world_.event_queue.now();
  if (world_.settings.recomputes) choose_base(to, agent, active_[id]);
  const bool is_stored = order.source == storage_node;
  const TimeMs duration = is_stored ? world_.random.between(1, 4 * world_.settings.transfer_ms) : 0;
  world_.event_queue.after(duration + world_.random.between(1, 5), [this, id, is_stored] {
    if (is_stored) return read_stored(id);
    serve(id, 0);
  });
}

bool Transfer::reads_from(NodeId node) const {
  const auto is_it = [&](const auto& source) { return source.node == node; };
  return order.source == node || std::any_of(readings.begin(), readings.end(), is_it) ||
         std::any_of(order.coding_inputs.sources.begin(), order.coding_inputs.sources.end(), is_it);
}

bool Transfers::flows(NodeId from, const Transfer& transfer) const {
  const Agent* source = world_.agent_on(from);
  return source != nullptr && !source->is_frozen() &&
         (from == transfer.to || world_.network.open_both_ways(from, transfer.to));
}

bool Transfers::flows(const Transfer& transfer) const {
  return !is_broken(transfer) && std::all_of(transfer.readings.begin(), transfer.readings.end(),
                                             [&](const Reading& reading) { return flows(reading.node, transfer); });
}

// True if an agent that served the transfer is gone.
bool Transfers::is_broken(const Transfer& transfer) const {
  return std::any_of(transfer.readings.begin(), transfer.readings.end(),
                     [&](const Reading& reading) { return world_.agent(reading.node, reading.agent) == nullptr; });
}

// Looks for the piece on each of these nodes that can be reached. A node without it is no source.
bool Transfers::find_source(const Transfer& transfer, const std::string& shard, const std::vector<NodeId>& nodes,
                            std::vector<Reading>& readings) const {
  for (const NodeId node : nodes) {
    if (!flows(node, transfer)) continue;
    const Agent& source = *world_.agent_on(node);
    const SlotRef* ref = source.node().find(shard, transfer.order.piece.checkpoint);
    if (ref == nullptr) continue;
    readings.push_back({node, source.id(), *ref});
    return true;
  }
  return false;
}

Transfers::Availability Transfers::find_sources(const Transfer& transfer, std::vector<Reading>& readings) const {
  const StartFetch& order = transfer.order;
  if (order.source != parity_node) {
    if (!flows(order.source, transfer)) return Availability::not_yet;
    if (find_source(transfer, order.piece.shard, {order.source}, readings)) return Availability::all;
    return find_arriving(transfer);
  }
  const ParityManifest& parity_manifest = order.coding_inputs.parity_manifest;
  const auto wanted = group_piece(parity_manifest, order.piece.shard);
  const auto plan = plan_coding(parity_manifest, *wanted, lost_pieces(parity_manifest, order.coding_inputs.sources));
  for (const std::string& shard : inputs_of(plan, parity_manifest)) {
    std::vector<NodeId> nodes;
    for (const auto& source : order.coding_inputs.sources) {
      if (source.shard != shard) continue;
      if (nodes.empty() && has_input(transfer, source)) nodes.push_back(transfer.to);
      nodes.push_back(source.node);
    }
    const bool is_up = std::any_of(nodes.begin(), nodes.end(), [&](NodeId node) { return flows(node, transfer); });
    if (!is_up) return Availability::not_yet;
    if (!find_source(transfer, shard, nodes, readings)) return Availability::not_there;
  }
  return plan.lost.empty() ? Availability::all : Availability::not_there;
}

// The node itself may have a piece that it needs for coding.
bool Transfers::has_input(const Transfer& transfer, const CodingInputs::Source& input) const {
  const Agent* receiver = world_.agent(transfer.to, transfer.to_agent);
  const SlotRef* ref =
      receiver == nullptr ? nullptr : receiver->node().find(input.shard, transfer.order.piece.checkpoint);
  return ref != nullptr && world_.machines.at(transfer.to).arena.find(*ref)->header.root_digest == input.root_digest;
}

// What the source says of a piece that it is receiving, or is going to receive. Only nodes behind it in the same chain
// may wait for such a piece, so nodes do not wait for each other in a circle. The real agent sends on what it has
// received so far. Here the transfer begins when the source has all of the piece.
Transfers::Availability Transfers::find_arriving(const Transfer& transfer) const {
  const NodeId chain_from = transfer.order.chain_from;
  if (chain_from == no_node || !comes_after(transfer.to, transfer.order.source, chain_from) || !restores(transfer))
    return Availability::not_there;
  const auto found = std::find_if(active_.begin(), active_.end(), [&](const auto& entry) {
    const Transfer& other = entry.second;
    return other.to == transfer.order.source && other.order.source < parity_node &&
           other.order.piece == transfer.order.piece && other.order.chain_from == chain_from && restores(other);
  });
  if (found == active_.end()) return Availability::not_there;
  if (found->second.has_begun) return Availability::arriving;
  return is_coming(found->second) ? Availability::coming : Availability::not_there;
}

bool Transfers::is_coming(const Transfer& arriving) const {
  const auto at = arrived_at_.find(arriving.to_agent);
  return !failed_.contains(piece_of(arriving)) && at != arrived_at_.end() &&
         world_.event_queue.now() - at->second < quiet_ms;
}

// Ranks wait for the piece.
bool Transfers::restores(const Transfer& transfer) const {
  const Agent* receiver = world_.agent(transfer.to, transfer.to_agent);
  return receiver != nullptr && transfer.order.source < parity_node &&
         transfer.order.piece.checkpoint.incarnation() != receiver->node().status().incarnation;
}

Transfers::PieceOfAgent Transfers::piece_of(const Transfer& transfer) {
  return {transfer.to_agent, transfer.order.piece.shard, transfer.order.piece.checkpoint};
}

void Transfers::look_again(std::uint64_t id, TimeMs waited_ms) {
  world_.event_queue.after(retry_ms, [this, id, waited_ms] { serve(id, waited_ms); });
}

void Transfers::serve(std::uint64_t id, TimeMs waited_ms) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  Transfer& transfer = found->second;
  std::vector<Reading> readings;
  const Availability sources = find_sources(transfer, readings);
  if (sources == Availability::not_yet) {
    if (waited_ms >= wait_limit_ms) return end_after(0, id, FetchResult::failed);
    return look_again(id, waited_ms + retry_ms);
  }
  if (sources == Availability::all || sources == Availability::arriving) transfer.has_begun = true;
  if (sources == Availability::arriving) return look_again(id, 0);
  // If the piece is coming again after the source has failed, the limit stands.
  if (sources == Availability::coming && !transfer.has_begun) return look_again(id, 0);
  if (sources != Availability::all) {
    const TimeMs limit_ms = transfer.has_begun ? interruption_ms : arrival_wait_ms;
    if (waited_ms < limit_ms && restores(transfer)) return look_again(id, waited_ms + retry_ms);
    return end_after(world_.random.between(1, 5), id, FetchResult::failed);
  }
  transfer.readings = std::move(readings);
  for (const Reading& reading : transfer.readings) {
    Machine& machine = world_.machines.at(reading.node);
    world_.invariants.serving(machine, reading.slot, reading.slot.shard, transfer.order.piece.checkpoint);
    ++machine.arena.find(reading.slot)->readers;
  }
  // Gradients are a third of a piece.
  const TimeMs typical =
      transfer.base ? std::max<TimeMs>(2, world_.settings.transfer_ms / 3) : world_.settings.transfer_ms;
  // Now and then a transfer takes longer than anybody waits for a node.
  transfer.is_slow = world_.random.chance(5);
  const TimeMs duration = transfer.is_slow ? world_.random.between(1000, 2 * world_.settings.core.node_wait_ms)
                                           : world_.random.between(typical / 2, typical * 2);
  world_.event_queue.after(duration, [this, id] { arrive(id, 0); });
}

void Transfers::read_stored(std::uint64_t id) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  const Transfer& transfer = found->second;
  const PieceInfo& piece = transfer.order.piece;
  if (world_.storage.is_out()) return end_after(0, id, FetchResult::failed);
  finish(id, piece, world_.storage.read(piece) ^ (transfer.flip ? 1 : 0));
}

void Transfers::finish(std::uint64_t id, const PieceInfo& piece, std::uint64_t bytes) {
  const Transfer& transfer = active_.at(id);
  const bool intact = bytes == piece.root_digest;
  Slot& slot = *world_.machines.at(transfer.to).arena.find(transfer.order.slot);
  slot.bytes = bytes;
  if (intact) {
    slot.header = piece;
    slot.dropped = {};
    slot.sealed = true;
  }
  end_after(0, id, intact ? FetchResult::complete : FetchResult::corrupt, piece);
}

void Transfers::arrive(std::uint64_t id, TimeMs waited_ms) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  Transfer& transfer = found->second;
  const Agent* receiver = world_.agent(transfer.to, transfer.to_agent);
  if (receiver != nullptr && receiver->is_frozen()) {
    world_.event_queue.after(retry_ms, [this, id, waited_ms] { arrive(id, waited_ms); });
    return;
  }
  if (!flows(transfer)) {
    if (is_broken(transfer) || waited_ms >= wait_limit_ms) return end_after(0, id, FetchResult::failed);
    world_.event_queue.after(retry_ms, [this, id, waited_ms] { arrive(id, waited_ms + retry_ms); });
    return;
  }
  if (transfer.base) return repeat(id);
  // The receiver says which node sent damaged bytes. That node then checks its own piece.
  bool intact = !transfer.flip;
  for (const Reading& reading : transfer.readings) {
    if (!transfer.flip && world_.machines.at(reading.node).arena.find(reading.slot)->intact()) continue;
    intact = false;
    world_.agent_on(reading.node)->later(world_.random.between(1, 5), [ref = reading.slot](Agent& a) {
      a.verify(ref);
    });
  }
  PieceInfo piece = transfer.order.piece;
  if (piece.is_parity() && piece.root_digest == 0) piece.root_digest = parity_digest(piece);
  finish(id, piece, intact ? bytes_read(transfer, piece) : ~piece.root_digest);
}

// ---- Repeated updates ----

void Transfers::choose_base(Machine& to, Agent& agent, Transfer& transfer) {
  const StartFetch& order = transfer.order;
  const Segment& segment = to.arena.segments.at({order.slot.rank, order.slot.shard});
  std::vector<RepeatedUpdates::Held> held;
  for (std::size_t i = 0; i < segment.size(); ++i) {
    const SlotRef ref{order.slot.rank, order.slot.shard, static_cast<std::uint8_t>(i)};
    if (segment[i].counted) held.push_back({ref, segment[i].header.checkpoint, segment[i].header.length_bytes});
  }
  const bool is_urgent = order.piece.checkpoint.incarnation() != agent.node().status().incarnation;
  const auto choice = agent.repeated_updates().choose(order, is_urgent, held);
  world_.repeat_check.chosen(to, agent.id(), order, is_urgent, choice.base);
  if (choice.base == nullptr) return;
  transfer.base = choice.base->slot;
  ++to.arena.find(*transfer.base)->readers;
}

void Transfers::release_base(Transfer& transfer) {
  const auto base = std::exchange(transfer.base, std::nullopt);
  Agent* agent = world_.agent(transfer.to, transfer.to_agent);
  if (base && agent != nullptr) agent->later(0, [ref = *base](Agent& a) { a.unpin(ref); });
}

// The gradients have arrived. If they do not lead to the piece, the node fetches the whole piece.
void Transfers::repeat(std::uint64_t id) {
  Transfer& transfer = active_.at(id);
  const PieceInfo& piece = transfer.order.piece;
  Arena& arena = world_.machines.at(transfer.to).arena;
  const Slot& before = *arena.find(*transfer.base);
  const Reading& from = transfer.readings.front();
  const auto record = world_.machines.at(from.node).arena.find(from.slot)->record;
  const auto shape = [](const PieceInfo& of) { return PieceShape{of.checkpoint, of.length_bytes, of.layout_bytes}; };
  RepeatEnd end = RepeatEnd::missing;
  std::uint64_t bytes = 0;
  if (record && why_not_repeated(record->base, shape(piece), shape(piece), shape(before.header)).empty()) {
    bytes = mix(before.bytes, record->step) ^ (transfer.flip ? 1 : 0) ^ (transfer.is_wrong ? 8 : 0);
    end = judge_repeated(bytes == piece.root_digest, !transfer.flip);
    world_.repeat_check.repeated(transfer, *record, before, bytes, end);
  } else {
    world_.repeat_check.missing();
  }
  world_.agent(transfer.to, transfer.to_agent)->repeated_updates().ended(piece.shard, end);
  world_.trace.line(world_.event_queue.now(), [&] {
    return text("node ", transfer.to, " repeats an update of ", piece.shard, " to ", describe(piece.checkpoint),
                end == RepeatEnd::equal ? "" : ", which does not give the piece");
  });
  release_base(transfer);
  if (end != RepeatEnd::equal) {
    stop_serving(transfer);
    transfer.flip = transfer.is_wrong = false;
    return serve(id, 0);
  }
  Slot& slot = *arena.find(transfer.order.slot);
  slot.bytes = bytes;
  slot.header = piece;
  slot.dropped = {};
  slot.sealed = true;
  end_after(0, id, FetchResult::complete, piece);
}

// The digest of what is computed from the pieces that were read. It is a wrong one if these are not the pieces that the
// parity manifest names.
std::uint64_t Transfers::bytes_read(const Transfer& transfer, const PieceInfo& piece) const {
  if (transfer.order.source != parity_node)
    return world_.machines.at(transfer.order.source).arena.find(transfer.readings.front().slot)->bytes;
  for (const Reading& reading : transfer.readings) {
    const PieceInfo& source = world_.machines.at(reading.node).arena.find(reading.slot)->header;
    const ParityManifest& parity_manifest = transfer.order.coding_inputs.parity_manifest;
    const bool is_named =
        source.is_parity()
            ? source.parity_manifest.sources == parity_manifest.sources
            : std::any_of(parity_manifest.sources.begin(), parity_manifest.sources.end(), [&](const auto& each) {
                return each.shard == source.shard && each.root_digest == source.root_digest;
              });
    if (!is_named || source.checkpoint != piece.checkpoint) return ~piece.root_digest;
  }
  return piece.root_digest;
}

void Transfers::end_after(TimeMs delay_ms, std::uint64_t id, FetchResult result, const PieceInfo& made) {
  world_.event_queue.after(delay_ms, [this, id, result, made] { end(id, result, made); });
}

void Transfers::end(std::uint64_t id, FetchResult result, const PieceInfo& made) {
  const auto found = active_.find(id);
  if (found == active_.end()) return;
  Transfer transfer = found->second;
  active_.erase(found);
  note_end(transfer, result);
  stop_serving(transfer);
  release_base(transfer);
  Slot* slot = world_.machines.at(transfer.to).arena.find(transfer.order.slot);
  if (slot != nullptr && result != FetchResult::complete) slot->sealed = false;
  if (Agent* agent = world_.agent(transfer.to, transfer.to_agent)) {
    agent->later(0, [fetch = transfer.order.fetch, ref = transfer.order.slot, result, made](Agent& a) {
      a.fetch_ended(fetch, ref, result, made);
    });
  }
}

void Transfers::note_end(const Transfer& transfer, FetchResult result) {
  if (transfer.order.source >= parity_node) return;
  if (result != FetchResult::complete) {
    failed_.insert(piece_of(transfer));
    return;
  }
  failed_.erase(piece_of(transfer));
  if (restores(transfer)) arrived_at_[transfer.to_agent] = world_.event_queue.now();
}

void Transfers::forget_everything() {
  active_.clear();
  failed_.clear();
  arrived_at_.clear();
}

void Transfers::stop_serving(Transfer& transfer) {
  for (const Reading& reading : std::exchange(transfer.readings, {})) {
    if (Agent* source = world_.agent(reading.node, reading.agent))
      source->later(0, [ref = reading.slot](Agent& a) { a.unpin(ref); });
  }
}

void Transfers::cancel(NodeId to, std::uint64_t agent, std::uint64_t fetch) {
  for (const auto& [id, transfer] : active_) {
    if (transfer.to != to || transfer.to_agent != agent || transfer.order.fetch != fetch) continue;
    end_after(world_.random.between(0, 20), id, FetchResult::failed);
    return;
  }
}

// The fetches of an agent that died end at once. Fetches of other agents that it served fail later.
void Transfers::agent_died(NodeId node, std::uint64_t agent) {
  for (auto it = active_.begin(); it != active_.end();) {
    const bool receiver_died = it->second.to == node && it->second.to_agent == agent;
    if (receiver_died) stop_serving(it->second);
    it = receiver_died ? active_.erase(it) : std::next(it);
  }
  std::erase_if(failed_, [&](const PieceOfAgent& piece) { return std::get<0>(piece) == agent; });
  arrived_at_.erase(agent);
}

}  // namespace ckpt::sim
