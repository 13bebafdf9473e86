#include "core/worker/slots.hpp"

#include "core/invariant.hpp"

namespace ckpt::core {

namespace {

auto segment_begin(const std::map<SlotRef, Slot>& slots, Rank rank, const std::string& shard) {
  return slots.lower_bound(SlotRef{rank, shard, 0});
}

bool in_segment(const SlotRef& ref, Rank rank, const std::string& shard) {
  return ref.rank == rank && ref.shard == shard;
}

}  // namespace

void SlotTable::add_segment(Rank rank, const std::string& shard, std::uint8_t slots) {
  for (std::uint8_t i = 0; i < slots; ++i) slots_.try_emplace(SlotRef{rank, shard, i});
}

void SlotTable::remove_segment(Rank rank, const std::string& shard) {
  std::erase_if(slots_, [&](const auto& entry) { return in_segment(entry.first, rank, shard); });
}

const Slot& SlotTable::at(const SlotRef& ref) const { return slots_.at(ref); }

std::optional<SlotRef> SlotTable::find_free(Rank rank, const std::string& shard) const {
  for (auto it = segment_begin(slots_, rank, shard); it != slots_.end() && in_segment(it->first, rank, shard); ++it) {
    if (it->second.state == SlotState::free) return it->first;
  }
  return std::nullopt;
}

// Goes from rank to rank, to each rank's segment for the shard: a node has few ranks and may have many shards.
template <class Predicate>
const SlotTable::Entry* SlotTable::first_of(const std::string& shard, const Predicate& is_wanted) const {
  for (auto it = slots_.begin(); it != slots_.end();) {
    const Rank rank = it->first.rank;
    for (it = segment_begin(slots_, rank, shard); it != slots_.end() && in_segment(it->first, rank, shard); ++it) {
      if (is_wanted(*it)) return &*it;
    }
    if (rank == held_rank) break;  // the last
    it = slots_.lower_bound(SlotRef{rank + 1, "", 0});
  }
  return nullptr;
}

const SlotRef* SlotTable::find_whole(const std::string& shard, CheckpointId checkpoint) const {
  const Entry* found = first_of(shard, [&](const Entry& entry) {
    return entry.second.state == SlotState::whole && entry.second.piece.checkpoint == checkpoint;
  });
  return found == nullptr ? nullptr : &found->first;
}

const SlotRef* SlotTable::find_filling(const std::string& shard, CheckpointId checkpoint) const {
  const Entry* found = first_of(shard, [&](const Entry& entry) {
    return entry.second.state == SlotState::filling && entry.second.piece.checkpoint == checkpoint;
  });
  return found == nullptr ? nullptr : &found->first;
}

void SlotTable::grant(const SlotRef& ref) { move(ref, SlotState::free, SlotState::granted); }
void SlotTable::take_back(const SlotRef& ref) { move(ref, SlotState::granted, SlotState::free); }
void SlotTable::fill(const SlotRef& ref, const PieceInfo& piece) {
  move(ref, SlotState::free, SlotState::filling).piece = piece;
}
void SlotTable::abandon_fill(const SlotRef& ref) { move(ref, SlotState::filling, SlotState::free); }

void SlotTable::captured(const SlotRef& ref, const PieceInfo& piece) {
  move(ref, SlotState::granted, SlotState::whole).piece = piece;
}

void SlotTable::fetched(const SlotRef& ref, Tier from, std::uint64_t incarnation, const PieceInfo* made) {
  Slot& slot = move(ref, SlotState::filling, SlotState::whole);
  if (made != nullptr) slot.piece = *made;
  slot.from = from;
  slot.fetched_in = incarnation;
}

void SlotTable::drain(const SlotRef& ref) { move(ref, SlotState::whole, SlotState::draining); }

void SlotTable::release(const SlotRef& ref) {
  const auto it = slots_.find(ref);
  if (it != slots_.end() && it->second.state == SlotState::draining) it->second = Slot{};
}

void SlotTable::for_each(const std::function<void(const SlotRef&, const Slot&)>& visit) const {
  for (const auto& [ref, slot] : slots_) visit(ref, slot);
}

std::vector<std::pair<Rank, std::string>> SlotTable::empty_segments() const {
  std::vector<std::pair<Rank, std::string>> empty;
  for (auto it = slots_.begin(); it != slots_.end();) {
    const SlotRef first = it->first;
    bool all_free = true;
    for (; it != slots_.end() && in_segment(it->first, first.rank, first.shard); ++it) {
      all_free = all_free && it->second.state == SlotState::free;
    }
    if (all_free) empty.emplace_back(first.rank, first.shard);
  }
  return empty;
}

std::vector<PieceInfo> SlotTable::whole_pieces() const {
  std::vector<PieceInfo> pieces;
  for (const Entry& entry : slots_) {
    if (entry.second.state != SlotState::whole) continue;
    const PieceInfo& piece = entry.second.piece;
    const Entry* first = first_of(piece.shard, [&](const Entry& other) {
      return other.second.state == SlotState::whole && other.second.piece == piece;
    });
    if (first == &entry) pieces.push_back(piece);
  }
  return pieces;
}

Slot& SlotTable::move(const SlotRef& ref, SlotState from, SlotState to) {
  Slot& slot = slots_.at(ref);
  invariant(slot.state == from, "a slot is not in the state from which this change is allowed");
  slot.state = to;
  if (to == SlotState::free) slot = Slot{};
  return slot;
}

}  // namespace ckpt::core
