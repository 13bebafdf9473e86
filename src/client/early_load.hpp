// EarlyLoad copies pieces into the tensors while they are still arriving at this node. So a restore from another node
// takes little longer than the transfer alone, and the bytes are still in the caches.
//
// The agent says in the slot how far a piece has arrived (arena/slot.hpp). EarlyLoad verifies each leaf once more, in
// the same pass as it copies. It trusts neither the agent nor the memory. A transfer may fail and begin anew, from
// another source or with another piece. EarlyLoad remembers which leaves of which piece the tensors hold, and forgets
// what other pieces have overwritten.
//
// Only the training thread uses it, within restore().
#pragma once

#include <list>
#include <vector>

#include "arena/segment.hpp"
#include "client/arriving_slots.hpp"
#include "client/tensor_registry.hpp"
#include "device/device.hpp"

namespace ckpt::client {

// One piece that is arriving in a slot. The slot's segment outlives it.
class ArrivingPiece {
 public:
  explicit ArrivingPiece(const arena::Slot& slot) : slot_(slot) {}

  // Looks whether the piece has been announced in the slot. Afterwards manifest() is the piece's.
  bool find(CheckpointId checkpoint);
  const arena::Manifest& manifest() const { return arrival_.manifest; }
  // The tensors hold these first leaves.
  void skip(std::size_t leaves) { leaves_ = leaves; }
  std::size_t leaves() const { return leaves_; }
  bool has_changed_tensors() const { return has_changed_tensors_; }

  // Copies the next leaves that have arrived, and counts them in leaves(). `over`: all leaves are in the tensors, or
  // the transfer into this slot has failed, or a leaf is damaged.
  enum class Step { waits, copied, over };
  Step load(device::Device& device, const device::Plan& plan);

  // Waits until more has arrived than when doorbell() was read, or until the deadline.
  std::uint32_t doorbell() const { return slot_.arrival_doorbell(); }
  void wait(std::uint32_t seen, Deadline deadline) const { slot_.wait_arrival(seen, deadline); }

 private:
  arena::Slot slot_;
  arena::Slot::Arrival arrival_;
  std::size_t leaves_ = 0;
  bool has_changed_tensors_ = false;
};

class EarlyLoad {
 public:
  // Both outlive it. The tensors stay registered as they are.
  EarlyLoad(device::Device& device, const RankState& state) : device_(device), state_(state) {}

  // Follows the piece that arrives in a slot, or will. A piece that was whole before is left to the restore itself.
  void follow(ArrivingSlot arriving);
  // Copies what has arrived. If nothing has, waits a few milliseconds for it. Returns false if no piece is arriving.
  bool step() noexcept;

  // How many leaves of this piece are in the tensors, from the first one on.
  std::size_t leaves_loaded(const arena::Manifest& manifest) const;
  // The tensors were written in another way: none of these leaves counts any more.
  void forget();
  // True if a tensor may have changed since this object was made.
  bool has_changed_tensors() const { return has_changed_tensors_; }

 private:
  struct Followed {
    ArrivingSlot slot;
    ArrivingPiece piece;
    std::optional<device::Plan> plan = {};  // once the piece was found
    bool is_overtaken = false;              // another piece has taken its tensors
  };
  struct Loaded {
    arena::Manifest manifest;
    bool is_private = false;
    std::size_t leaves = 0;
  };

  bool copy_arrived();
  ArrivingPiece::Step advance(Followed& followed);
  bool begin(Followed& followed);
  void take_tensors(const Followed& followed);
  Loaded& loaded(const Followed& followed);

  device::Device& device_;
  const RankState& state_;
  std::list<Followed> followed_;  // first the piece of which something arrived last
  std::vector<Loaded> loaded_;    // no two of them share tensors
  bool has_changed_tensors_ = false;
};

}  // namespace ckpt::client
