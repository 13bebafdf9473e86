// ReplicationPage is the page of a receive buffer through which a trainer and its agent coordinate GPU replication.
//
// The trainer publishes its own state there, and the agent sends it to the other members of the replication group. The
// agent writes the other members' states there. It also writes which checkpoints it has taken out of the receive
// buffer, so that the trainer may overwrite them. After a change, each side rings the other's doorbell in the control
// page.
//
// The object points into the receive buffer's mapping, which must outlive it. Trainer and agent have functions of their
// own. On each side, only one thread at a time may call those that write. Nothing takes a lock or makes a system call.
// Either side may die after any store: readers ignore a half-written state, and the next writer replaces it.
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
