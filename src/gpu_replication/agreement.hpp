// Agreement decides which steps of an exchange (exchange.hpp) a rank may issue, which means: hand to NCCL and the GPU.
// Here a member is a rank of the replication group. A step that another member never issues would hang on the GPU. So a
// step is issued only after all members have announced that they will issue it: after they have promised it. Each
// member sends its state to the others, over messages that may be lost, repeated or reordered. A member never takes
// back a promise.
//
// - A member that captures a checkpoint promises the first steps of this checkpoint's exchange, up to some
//   number. It issues the steps that all members have promised, whatever happens.
// - A member goes on to a newer checkpoint when its exchange has ended. It may go on earlier, when all steps have ended
//   that all members promised, and either it has promised no others, or another member has gone on. So the first member
//   that goes on leaves no promised step open. All members have then issued the same steps, and will issue no more.
// - A member that gives up says so in its state. Then no member issues anything any more.
//
// This relies on one fact: a step ends on no member before all members have issued it. The reason is that in each step
// each member receives something from every other member.
//
// Agreement does no I/O. Each member has one Agreement per incarnation. Never give it a state of another incarnation.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ckpt::schedule {

class Agreement {
 public:
  struct State {
    std::uint64_t checkpoint = 0;    // to be exchanged; a newer one has a larger number; 0: none yet
    std::uint64_t length_bytes = 0;  // of this member's piece
    std::uint64_t chunk_bytes = 0;   // the chunk size that this member wants; all use the smallest
    std::uint64_t promised = 0;      // number of steps, from the first one, that this member has promised
    bool has_given_up = false;
    bool operator==(const State&) const = default;
  };

  // `members`: how many members there are. `member`: this member's number.
  Agreement(std::uint32_t members, std::uint32_t member) : states_(members), member_(member) {}

  // This member's state. Send it to the others when it has changed, and repeat it, because messages may be lost.
  const State& own() const { return states_[member_]; }
  // Takes another member's state. Ignores a state that is older than the known one.
  void receive(std::uint32_t member, const State& state);

  // A checkpoint newer than own().checkpoint was captured here. own() goes on to it as soon as the rules above permit.
  void offer(std::uint64_t checkpoint, std::uint64_t length_bytes, std::uint64_t chunk_bytes);
  // Promises at least the first `steps` steps. Ignored if `checkpoint` is no longer own().checkpoint.
  void promise(std::uint64_t checkpoint, std::uint64_t steps);
  // Says that the first `steps` steps of the checkpoint's exchange have ended here. The exchange has `of` steps.
  // Ignored if `checkpoint` is no longer own().checkpoint.
  void ended(std::uint64_t checkpoint, std::uint64_t steps, std::uint64_t of);
  void give_up() { states_[member_].has_given_up = true; }

  // The sizes with which the members exchange their pieces of own().checkpoint. Nothing until the states of all members
  // name this checkpoint.
  struct Terms {
    std::vector<std::uint64_t> lengths_bytes;  // of each member's piece
    std::uint64_t chunk_bytes = 0;
  };
  std::optional<Terms> terms() const;
  // How many steps of own().checkpoint's exchange this member must issue.
  std::uint64_t allowed() const { return allowed_; }
  // True if any member has given up.
  bool has_given_up() const;

 private:
  void settle();
  void allow();
  bool may_go_on() const;

  std::vector<State> states_;
  const std::uint32_t member_;
  std::uint64_t allowed_ = 0, ended_ = 0;  // steps of own().checkpoint
  bool is_over_ = true;                    // all steps of the exchange have ended
  std::optional<State> next_;              // the newest checkpoint offered
};

}  // namespace ckpt::schedule
