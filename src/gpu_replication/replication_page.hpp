// The page through which a trainer and its agent coordinate GPU replication. It follows the first page of the rank's
// receive buffer file. The trainer publishes its own state, and the agent sends it to the other members of the
// replication group. The agent writes the other members' states into the page. It also writes up to which checkpoint it
// has taken pieces out of the receive buffer, so that the trainer may overwrite them. After a change, each side rings
// the other's doorbell in the control page. Nothing here takes a lock or makes a system call.
//
// The object is a view: the receive buffer's mapping must outlive it. Trainer and agent each have their own functions.
// On each side, only one thread at a time may call those that write. Either side may die after any store: readers
// ignore a half-written state, and the next writer replaces it.
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

// What a member of a group publishes to all others, always as a whole.
struct ReplicationState {
  std::optional<std::array<std::byte, communicator_id_bytes>> id;  // of the communicator; only from member 0
  std::uint64_t piece_bytes = 0;                                   // largest size of its pieces; 0: not known yet
  schedule::Agreement::State state;
  bool operator==(const ReplicationState&) const = default;
};

class ReplicationPage {
 public:
  explicit ReplicationPage(ReplicationWords& words) : words_(&words) {}

  // Trainer.
  void publish(const ReplicationState& word) { write(words_->own, word); }
  std::optional<ReplicationState> state_of(std::size_t member) const { return read(words_->members[member]); }
  // The newest checkpoint at the place that the trainer may overwrite, with all older ones.
  CheckpointId taken(std::size_t place) const;
  // Records that GPU replication is over for this incarnation, and why, for people. Only the first call counts.
  void fail(std::string_view sentence);

  // Agent. What the trainer wrote is untrusted: text has a bounded length, and numbers may be anything.
  std::optional<ReplicationState> own_state() const { return read(words_->own); }
  std::optional<std::string> failure() const;
  void put_state(std::size_t member, const ReplicationState& word) { write(words_->members[member], word); }
  // Never decreases.
  void taken(std::size_t place, CheckpointId checkpoint);

 private:
  static void write(ReplicationWords::ReplicationSlot& to, const ReplicationState& word);
  static std::optional<ReplicationState> read(const ReplicationWords::ReplicationSlot& from);

  ReplicationWords* words_;
};

}  // namespace ckpt::arena
