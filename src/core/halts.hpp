// Halts: all ranks freeze, so that the state of the iteration that they are in can be captured after a failure. Pure.
//
// The leader makes a halt once it knows who holds training up, and sends it with its directives. A halted rank begins
// no update any more: it is *held*, and says at which iteration. Once every rank that answers is held, the leader
// decides at which iteration ranks freeze: the newest that any held rank has reached. A rank that is behind does one
// more update. Then the engines capture all ranks that are at this iteration. A halt lasts until the next incarnation
// begins.
//
// No old halt has an effect: nodes obey only directives of the newest epoch, and pass a halt on only to trainers of the
// halted incarnation. There is at most one halt in an incarnation. A new leader goes on with the halt that ranks
// report.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/health.hpp"
#include "core/suspicions.hpp"
#include "core/types.hpp"

namespace ckpt::core {

// How far a rank is with freezing. The numbers go over the wire and stand in control pages.
enum class Freeze : std::uint8_t {
  none = 0,       // it has not answered
  updating = 1,   // it has not finished its update, or must do one more
  held = 2,       // at rest; it begins no update
  capturing = 3,  // frozen for good; its state is being captured
  captured = 4,   // frozen, and its state is whole in its slots
  refused = 5,    // frozen, but its state cannot be captured
};
inline constexpr Freeze last_freeze = Freeze::refused;
const char* freeze_name(Freeze freeze);  // for programs

// What a rank answers to a halt.
struct FreezeAnswer {
  std::uint64_t halt = 0;  // number of the halt that it answers; 0: it knows of none
  Freeze freeze = Freeze::none;
  std::int64_t iteration = -1;  // the newest whose update it has finished
  bool operator==(const FreezeAnswer&) const = default;
};

// A rank of a halted job whose state at the iteration of the halt is not captured yet.
struct Unfrozen {
  Rank rank = 0;
  NodeId node = no_node;
  Freeze freeze = Freeze::none;
  std::int64_t iteration = -1;
  bool operator==(const Unfrozen&) const = default;
};
inline constexpr std::size_t unfrozen_max = 16;

struct Halt {
  std::uint64_t incarnation = 0;               // 0: there is none
  std::uint64_t number = 0;                    // the epoch of the leader that made it
  std::optional<std::int64_t> iteration = {};  // at which ranks freeze; none: not decided yet
  std::vector<Culprit> culprits = {};          // why; empty if a former leader made it
  std::uint32_t ranks = 0;                     // how many the job has
  std::uint32_t captured = 0;                  // ranks whose state of that iteration is whole
  std::vector<Unfrozen> others = {};           // the other ranks, lowest first, at most unfrozen_max of them
  // True: the leader no longer waits for any rank. False again if a culprit comes to rest later: the leader then waits
  // until this rank is captured.
  bool is_over = false;
  Rank reporter = no_rank;  // the rank that reported a failed communication; no_rank: none did
  NodeId reporter_node = no_node;
  bool operator==(const Halt&) const = default;
};

// Returns whether the suspicion names ranks that will not go on by themselves. False for slow ranks, because they make
// progress. Also false if all ranks are culprits, because then no rank is to blame.
bool justifies_halt(const Suspicion& suspicion);

// A rank of the halted incarnation, as the leader knows it.
struct HaltedRank {
  Rank rank = 0;
  NodeId node = no_node;
  FreezeAnswer answer;
  bool is_awaited = true;  // false: its process has ended, or its node does not answer, or it is a culprit not at rest
};

// Returns the halt's next state, computed from the ranks' answers. `decides_now`: decide the iteration without waiting
// for ranks that are not held. `ends_now`: end the halt without waiting for any rank.
Halt advance(Halt halt, const std::vector<HaltedRank>& ranks, bool decides_now, bool ends_now);

// Returns a sentence for people that says why the incarnation is halted and how many ranks are captured. "" if there is
// no halt.
std::string explain(const Halt& halt, const NameOf& name_of);

}  // namespace ckpt::core
