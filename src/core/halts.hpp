// Halts: all ranks freeze, so that the state of the iteration that they are in can be captured after a failure. Pure.
//
// The leader makes a halt once it knows who holds training up, and sends it with its directives. A halted rank begins
// no update any more: it is *held*, and says at which iteration. Once every rank that answers is held, the leader
// decides at which iteration ranks freeze: the newest that any of them has reached. A rank that is behind does one more
// update. Then all that are at that iteration are captured. A halt lasts until the next incarnation begins.
//
// A halt is fenced twice: nodes obey the directives of the newest epoch alone, and pass a halt on only to trainers of
// its incarnation. There is one halt for each incarnation. A new leader goes on with the one that ranks report.
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
  updating = 1,   // it has not finished the update of the next iteration
  held = 2,       // at rest; it begins no update
  capturing = 3,  // frozen for good
  captured = 4,   // frozen, and its state is whole in its slots
  refused = 5,    // frozen, but its state cannot be captured
};
inline constexpr Freeze last_freeze = Freeze::refused;
const char* freeze_name(Freeze freeze);  // for programs

// What a rank answers to a halt.
struct FreezeAnswer {
  std::uint64_t halt = 0;  // the number of that halt; 0: it was told of none
  Freeze freeze = Freeze::none;
  std::int64_t iteration = -1;  // the one whose update it has finished last
  bool operator==(const FreezeAnswer&) const = default;
};

// A rank that is not captured at the halt's iteration, or not yet.
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
  std::uint32_t ranks = 0;                     // of the job
  std::uint32_t captured = 0;                  // ranks whose state of that iteration is whole
  std::vector<Unfrozen> others = {};           // the first of all others, by rank
  bool is_over = false;                        // no rank is awaited any more
  Rank reporter = no_rank;                     // says that a communication failed by itself; no_rank: no rank said so
  NodeId reporter_node = no_node;
  bool operator==(const Halt&) const = default;
};

// Whether the suspicion names ranks that will not go on by themselves. A slow rank makes progress. If all ranks are at
// the same place, none is to blame.
bool justifies_halt(const Suspicion& suspicion);

// A rank of the halted incarnation, as the leader knows it.
struct HaltedRank {
  Rank rank = 0;
  NodeId node = no_node;
  FreezeAnswer answer;
  bool is_awaited = true;  // false: its process has ended, or its node does not answer, or it is a culprit
};

// Draws the halt's next state from the ranks' answers. `decides_now`: ranks that are not held yet are no longer waited
// for. `ends_now`: nobody is waited for.
Halt advance(Halt halt, const std::vector<HaltedRank>& ranks, bool decides_now, bool ends_now);

// A sentence, "" if there is no halt.
std::string explain(const Halt& halt, const NameOf& name_of);

}  // namespace ckpt::core
