// Agreement decides which steps of an exchange a rank may issue (exchange.hpp explains steps). A step that another
// member of the replication group never issues would hang on the GPU. So a step is issued only after all members have
// promised to issue it. Each member sends its state to the others, over messages that may be lost, repeated or
// reordered. A member never takes back a promise.
//
// - A member that has captured a checkpoint promises the first steps of its exchange, up to some number. It issues as
//   many as all members have promised, whatever happens.
// - A member goes on to a newer checkpoint when all steps that it may issue have ended. Besides, one of two things must
//   hold: it has promised no more steps than these, or another member has gone on already. When the first member goes
//   on, all that it promised has ended. So all others have issued the same steps, and no others.
// - A member that gives up says so. Then nobody issues anything any more.
//
// This relies on one fact: a step ends on no member before all members have issued it. That is so because each member
// receives something from every other one in each step.
//
// It does no I/O. Each member has one Agreement per incarnation. Do not mix the states of two incarnations.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ckpt::schedule {

class Agreement {
 public:
  struct State {
    std::uint64_t checkpoint = 0;  // newer checkpoints are larger; 0: none yet
    std::uint64_t length_bytes = 0;
    std::uint64_t chunk_bytes = 0;  // the chunk size that this member wants; all use the smallest
    std::uint64_t promised = 0;     // steps
    bool has_given_up = false;
    bool operator==(const State&) const = default;
  };

  // `member`: the number of this one.
  Agreement(std::uint32_t members, std::uint32_t member) : states_(members), member_(member) {}

  // This member's state. Send it to the others when it has changed, and repeat it.
  const State& own() const { return states_[member_]; }
  // Takes another member's state. Ignores one that is older than what is known.
  void receive(std::uint32_t member, const State& state);

  // A checkpoint was captured here, newer than own().checkpoint. Its exchange begins as soon as may_go_on().
  void offer(std::uint64_t checkpoint, std::uint64_t length_bytes, std::uint64_t chunk_bytes);
  // Promises at least `steps` steps. Ignored unless `checkpoint` is own().checkpoint: the promise then comes too late.
  void promise(std::uint64_t checkpoint, std::uint64_t steps);
  // `steps` of the `of` steps of the checkpoint's exchange have ended. Ignored unless it is own().checkpoint.
  void ended(std::uint64_t checkpoint, std::uint64_t steps, std::uint64_t of);
  void give_up() { states_[member_].has_given_up = true; }

  // What the members exchange now: the pieces of own().checkpoint. There are no terms until all members have it.
  struct Terms {
    std::vector<std::uint64_t> lengths_bytes;  // of each member's piece
    std::uint64_t chunk_bytes = 0;
  };
  std::optional<Terms> terms() const;
  // How many steps of own().checkpoint this member must issue.
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
