// Finds the fewest faults with which a seed still violates an invariant, so that a person can understand the bug. Each
// run that it tries can be repeated from three things: the seed, the numbers of the faults that are kept, and a number
// that changes the other random choices.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "sim/world.hpp"

namespace ckpt::sim {

struct Shrunk {
  Outcome whole;                 // of the run with all faults
  std::set<std::size_t> faults;  // the remaining faults: their numbers in the plan, from 1
  std::uint64_t shake = 0;       // see Settings
  Outcome outcome;               // of the run with the remaining faults; violates the same invariant
  bool is_fewest = false;        // true: all smaller sets of faults were tried, and none violates the invariant
  std::uint64_t runs = 0;        // how many runs were tried
};

// Sets only `whole` if the seed violates nothing. Calls `progress` after every run.
Shrunk shrink(std::uint64_t seed, const std::function<void(std::uint64_t runs)>& progress);

// A text for people. Its last line is a command that repeats the run.
std::string shrunk_text(const Shrunk& shrunk);

// The options with which ckpt_sim repeats a run, such as "--seed 7 --faults 1,3".
std::string replay_options(const Settings& settings);

}  // namespace ckpt::sim
