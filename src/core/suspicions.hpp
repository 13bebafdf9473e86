// Suspicions: which ranks hold training up, and what their processes do. Pure.
//
// Every agent watches its ranks' marks and processes, and reports the ranks that are in trouble (RankStanding). The
// leader compares all of them and names the culprits. A rank that only waits in a communication is no culprit while
// another rank may still join that communication. This is so if the other rank is within its own deadline, is paused,
// or is in trouble itself.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/health.hpp"
#include "core/types.hpp"

namespace ckpt::core {

// The numbers go over the wire.
enum class RankTrouble : std::uint8_t {
  slow = 0,         // it makes progress, and computes much longer than the others
  waiting = 1,      // in a communication, past its deadline
  computing = 2,    // between communications, past its deadline
  unreachable = 3,  // its node does not answer; only the leader says so
  stopped = 4,      // its process is stopped (SIGSTOP, a debugger)
  dead = 5,         // its process ended, and did not close its engine
};
inline constexpr RankTrouble last_trouble = RankTrouble::dead;
// For programs.
const char* trouble_name(RankTrouble trouble);

// A rank in trouble, as its agent sees it.
struct RankStanding {
  Rank rank = 0;
  std::uint64_t incarnation = 0;
  RankTrouble trouble = RankTrouble::waiting;
  char process = 0;             // state of its main thread, as in /proc/PID/stat; 0: not known
  std::int64_t iteration = -1;  // the last one that it offered to snapshot(); -1: none
  std::optional<std::uint32_t> begun =
      {};                          // communications that have begun in the iteration after that; none: not known
  TimeMs still_ms = 0;             // how long ago its last mark was when this was reported
  std::uint32_t computing_ms = 0;  // with `slow`: mean computing time of an iteration
  std::optional<std::uint32_t> per_iteration =
      {};  // communications in an iteration; none: not known, or not always as many
  bool operator==(const RankStanding&) const = default;
};

struct Culprit {
  NodeId node = no_node;
  RankStanding standing;
  bool operator==(const Culprit&) const = default;
};

inline constexpr std::size_t culprits_max = 16;

struct Suspicion {
  std::vector<Culprit> culprits;  // by rank, at most culprits_max; empty: nobody is suspected
  std::uint32_t count = 0;        // of all culprits
  std::uint32_t waiting = 0;      // ranks that wait for the culprits in a communication
  // The furthest communication in which any rank waits for the culprits. If is_everybody, the one in which all ranks
  // wait. The iteration is as in RankStanding.
  std::int64_t iteration = -1;
  std::uint32_t communication = 0;  // its number in the iteration, from 1; 0: not the same number on all these ranks
  bool is_everybody = false;        // the culprits are all ranks, and none is known to be behind: no rank is to blame
  std::uint32_t usual_ms = 0;       // with slow culprits: how long the other ranks compute
  // True if both read the same to a person, apart from the times.
  bool says_the_same(const Suspicion& other) const;
  bool operator==(const Suspicion&) const = default;
};

// Returns the culprits among the ranks in trouble, by the first of these rules that finds any:
// 1. The ranks that are dead or stopped. If there are any, or if ranks wait, also the ranks whose node does not answer.
// 2. The ranks that compute past their deadline and have come least far.
// 3. If all ranks wait: those that have come least far.
// The rules compare iterations, and within an iteration the numbers of communications. If these ranks do not all make
// equally many communications in an iteration, the rules compare only iterations: in the stages of a pipeline, a lower
// number does not mean that a rank is behind.
Suspicion find_culprits(std::vector<Culprit> in_trouble, std::uint32_t world_size);

// How long a rank computes in an iteration.
struct ComputingTime {
  NodeId node = no_node;
  Rank rank = 0;
  std::uint32_t computing_ms = 0;  // 0: not known
};
// Returns the ranks that compute at least `factor` times as long as the median of all ranks. Names no rank while the
// time of any rank is not known.
Suspicion find_stragglers(const std::vector<ComputingTime>& times, std::uint32_t world_size, std::uint32_t factor);

// Returns sentences for people: which ranks hold training up, and what their processes do. "" if no rank is suspected.
std::string explain(const Suspicion& suspicion, const NameOf& name_of);

}  // namespace ckpt::core
