// ReplicationPage is the page of a receive buffer through which a trainer and its agent coordinate GPU replication.
//
// The trainer publishes its own state there, and the agent sends it to the other members of the replication group. The
// agent writes the other members' states there. It also writes which checkpoints it has taken out of the receive
// buffer, so that the trainer may overwrite them. After a change, each side rings the other's doorbell in the control
// page.
//
// The object points into the receive buffer's mapping, which must outlive it. Some functions are for the trainer,
// others for the agent. On each side, only one thread at a time may call functions that write. No function takes a lock
// or makes a system call. Either side may die after any store: readers ignore a half-written state, and the next writer
// replaces it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "arena/arena_format.hpp"
#include "core/checkpoint_id.hpp"
#include "src/gpu_replication/agreement.hpp"

namespace ckpt::arena {

// What a member of a replication group publishes to the others, always as a whole.
struct ReplicationState {
  std::optional<std::array<std::byte, communicator_id_bytes>> id;  // of the communicator; only member 0 publishes it
  std::uint64_t piece_bytes = 0;  // largest size of the member's pieces; 0: not known yet
  schedule::Agreement::State state;
  bool operator==(const ReplicationState&) const = default;
};

class ReplicationPage {
 public:
  explicit ReplicationPage(ReplicationWords& words) : words_(&words) {}

  // Trainer. state_of() returns nothing if the agent has not written that member's state, or is writing it.
  void publish(const ReplicationState& word) { write(words_->own, word); }
  std::optional<ReplicationState> state_of(std::size_t member) const { return read(words_->members[member]); }
  // Returns the newest checkpoint that the agent has taken out of the place. The trainer may overwrite it and older
  // ones.
  CheckpointId taken(std::size_t place) const;
  // Records that GPU replication is over for this incarnation. `sentence` says why, for people. Only the first call
  // counts.
  void fail(std::string_view sentence);

  // Agent. Do not trust what the trainer wrote: text has a bounded length, but numbers may have any value. own_state()
  // returns nothing if the trainer has written no state yet, or is writing it. failure() returns nothing if fail() was
  // not called.
  std::optional<ReplicationState> own_state() const { return read(words_->own); }
  std::optional<std::string> failure() const;
  void put_state(std::size_t member, const ReplicationState& word) { write(words_->members[member], word); }
  // Lets the trainer overwrite this checkpoint and older ones at the place. Ignored if the page names a newer one
  // already.
  void taken(std::size_t place, CheckpointId checkpoint);

 private:
  static void write(ReplicationWords::ReplicationSlot& to, const ReplicationState& word);
  static std::optional<ReplicationState> read(const ReplicationWords::ReplicationSlot& from);

  ReplicationWords* words_;
};

}  // namespace ckpt::arena
