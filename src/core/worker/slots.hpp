// SlotTable keeps the state of each slot on a node. A slot can change only in these ways:
//
//    free -> granted -> whole     a trainer captures into it
//    free -> filling -> whole     a fetch fills it (back to free if that fails)
//    granted -> free              its writer is proven dead
//    whole -> draining -> free    its piece is dropped; free once no transfer reads it
//
// Only a free slot is given to a writer. So no writer can overwrite a committed piece or one that is being read, and no
// late writer can damage a new piece.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/types.hpp"

namespace ckpt::core {

enum class SlotState : std::uint8_t { free, granted, filling, whole, draining };

struct Slot {
  SlotState state = SlotState::free;
  PieceInfo piece;               // while filling, whole or draining
  Tier from = Tier::local;       // where the piece came from
  std::uint64_t fetched_in = 0;  // incarnation in which it was fetched, 0: not fetched
};

class SlotTable {
 public:
  void add_segment(Rank rank, const std::string& shard, std::uint8_t slots);
  void remove_segment(Rank rank, const std::string& shard);

  const Slot& at(const SlotRef& ref) const;
  std::optional<SlotRef> find_free(Rank rank, const std::string& shard) const;
  const SlotRef* find_whole(const std::string& shard, CheckpointId checkpoint) const;
  const SlotRef* find_filling(const std::string& shard, CheckpointId checkpoint) const;
  bool is_filling(const std::string& shard, CheckpointId checkpoint) const {
    return find_filling(shard, checkpoint) != nullptr;
  }

  void grant(const SlotRef& ref);
  void take_back(const SlotRef& ref);  // from a dead writer
  void fill(const SlotRef& ref, const PieceInfo& piece);
  void abandon_fill(const SlotRef& ref);
  void captured(const SlotRef& ref, const PieceInfo& piece);
  // `made`: the piece, if nobody knew it before the transfer.
  void fetched(const SlotRef& ref, Tier from, std::uint64_t incarnation, const PieceInfo* made = nullptr);
  void drain(const SlotRef& ref);
  void release(const SlotRef& ref);  // no-op unless draining

  void for_each(const std::function<void(const SlotRef&, const Slot&)>& visit) const;
  // (rank, shard) of the segments that have only free slots.
  std::vector<std::pair<Rank, std::string>> empty_segments() const;
  std::vector<PieceInfo> whole_pieces() const;  // each (shard, checkpoint) once

 private:
  using Entry = std::map<SlotRef, Slot>::value_type;
  template <class Predicate>
  const Entry* first_of(const std::string& shard, const Predicate& is_wanted) const;
  Slot& move(const SlotRef& ref, SlotState from, SlotState to);

  std::map<SlotRef, Slot> slots_;
};

}  // namespace ckpt::core
