// How the members of a group agree, by messages that may be lost, repeated or overtake each other, on what each of them
// sends and receives (schedule/exchange.hpp): nobody issues a step that somebody else never will, for such a step would
// hang on the GPU. Each member tells the others its state; what it has promised it never takes back.
//
//   - A member that has captured a checkpoint promises to issue the first so many steps of its exchange. It issues as
//   many
//     as all have promised, and whatever happens.
//   - It goes on to a checkpoint that it captured later when all that it may issue has ended, and that is all that it
//   promised,
//     or another member has gone on. For the first one to go on, all that it promised has ended, so all others have
//     issued that; and none of them has issued more, as that one promised no more.
//   - Who gives up says so, and then nobody issues anything any more.
//
// It takes for granted that a step ends on no member before all have issued it: each has something from every other
// one.
//
// Pure. One for each member, in each incarnation of the job: the states of two incarnations must not be mixed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ckpt::schedule {

class Agreement {
 public:
  struct State {
    std::uint64_t checkpoint = 0;  // newer ones are larger; 0: none yet
    std::uint64_t length_bytes = 0;
    std::uint64_t chunk_bytes = 0;  // that it wants to cut its chunks to; the least of all counts
    std::uint64_t promised = 0;     // steps
    bool has_given_up = false;
    bool operator==(const State&) const = default;
  };

  // `member`: this one.
  Agreement(std::uint32_t members, std::uint32_t member) : states_(members), member_(member) {}

  // To be told to the others when it has changed, and again and again.
  const State& own() const { return states_[member_]; }
  // Of another member. Older ones than what was heard already are ignored.
  void receive(std::uint32_t member, const State& state);

  // Captured here, and newer than own().version. It is the one to exchange as soon as may_go_on().
  void offer(std::uint64_t checkpoint, std::uint64_t length_bytes, std::uint64_t chunk_bytes);
  // At least that many steps of own().version; of another one what is said comes late, and nothing is promised.
  void promise(std::uint64_t checkpoint, std::uint64_t steps);
  // Likewise: so many steps have ended, of all that there are in its exchange.
  void ended(std::uint64_t checkpoint, std::uint64_t steps, std::uint64_t of);
  void give_up() { states_[member_].has_given_up = true; }

  // What is exchanged now: own().version, the same for all members. Nothing while not all have it.
  struct Terms {
    std::vector<std::uint64_t> lengths_bytes;  // of each member's piece
    std::uint64_t chunk_bytes = 0;
  };
  std::optional<Terms> terms() const;
  // Steps of it that are to be issued.
  std::uint64_t allowed() const { return allowed_; }
  // Somebody has.
  bool has_given_up() const;

 private:
  void settle();
  void allow();
  bool may_go_on() const;

  std::vector<State> states_;
  const std::uint32_t member_;
  std::uint64_t allowed_ = 0, ended_ = 0;  // steps of own().version
  bool is_over_ = true;                    // all that there are have ended
  std::optional<State> next_;              // the newest that was offered
};

}  // namespace ckpt::schedule
