// Where a trainer and its agent tell each other how the GPU replication goes: behind the first page of the rank's
// receive buffer file, without locks and system calls. The trainer tells its own word, which the agent carries to the
// other members of the group; the agent puts down what they told, and up to which checkpoint it has taken what arrived.
// Who changes something rings the other side's doorbell in the control page.
//
// A view into the receive buffer's mapping, which outlives it. Each side uses its own functions; setters one at a time.
// Either side may die at any store: what is half written is not read, and is written anew by whoever comes next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "arena/arena_format.hpp"
#include "protocol/checkpoint_id.hpp"
#include "schedule/agreement.hpp"

namespace ckpt::arena {

// What a member of a group tells all others, all of it each time.
struct ReplicationState {
  std::optional<std::array<std::byte, communicator_id_bytes>> id;  // of the communicator: from member 0
  std::uint64_t piece_bytes = 0;                                   // that its pieces have at most; 0: not known yet
  schedule::Agreement::State state;
  bool operator==(const ReplicationState&) const = default;
};

class ReplicationPage {
 public:
  explicit ReplicationPage(ReplicationWords& words) : words_(&words) {}

  // Trainer.
  void publish(const ReplicationState& word) { write(words_->own, word); }
  std::optional<ReplicationState> state_of(std::size_t member) const { return read(words_->members[member]); }
  // What arrived at the place up to that checkpoint may be overwritten.
  CheckpointId taken(std::size_t place) const;
  // The replication is over for this incarnation, and this is why: a sentence for people. The first one counts.
  void fail(std::string_view sentence);

  // Agent. Nothing that the trainer wrote is more than it says: text of bounded length, numbers that may be anything.
  std::optional<ReplicationState> own_state() const { return read(words_->own); }
  std::optional<std::string> failure() const;
  void put_state(std::size_t member, const ReplicationState& word) { write(words_->members[member], word); }
  // It never falls.
  void taken(std::size_t place, CheckpointId checkpoint);

 private:
  static void write(ReplicationWords::ReplicationSlot& to, const ReplicationState& word);
  static std::optional<ReplicationState> read(const ReplicationWords::ReplicationSlot& from);

  ReplicationWords* words_;
};

}  // namespace ckpt::arena
