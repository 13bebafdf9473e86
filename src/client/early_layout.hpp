// EarlyLayout finds out how the stored shards of a rank are laid out while their bytes are still arriving: each piece's
// manifest arrives first. So a program makes and registers its tensors meanwhile, and EarlyLoad fills them as the bytes
// come.
//
// Another checkpoint may be decided before all bytes are here. Then is_of() says whether the layout still holds.
//
// Only the training thread uses it, within stored_layout() and restore().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "client/arriving_slots.hpp"
#include "client/stored.hpp"

namespace ckpt::client {

class EarlyLayout {
 public:
  // The newest news of the agent. It names each piece once.
  void add(ArrivingSlots news);
  // Returns true once the manifests of both shards are here. Waits for them until the deadline, unless the agent has
  // not named the slots yet: then it returns false at once.
  bool find(Deadline deadline);

  // If find() returned true: what ckpt_stored_layout() gives to the caller.
  std::string json() const;
  // Likewise: true if the agent's final answer has shards of the same layouts. Its checkpoint may be another one.
  bool is_of(const Stored& stored) const;

  // Gives away the slots, so that the pieces can be followed.
  std::vector<ArrivingSlot> take_slots() { return std::move(slots_); }

 private:
  const ArrivingSlot* find_slot(bool is_private) const;

  std::uint64_t incarnation_ = 0;
  CheckpointId checkpoint_;  // the one that the incarnation restores
  std::vector<ArrivingSlot> slots_;
  std::optional<arena::Manifest> main_;  // of any part: each has the layout of the whole shard
  std::optional<arena::Manifest> private_;
};

}  // namespace ckpt::client
