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
  Outcome whole;                 // of the unchanged seed
  std::set<std::size_t> faults;  // the remaining faults, by number in the plan, from 1
  std::uint64_t shake = 0;
  Outcome outcome;         // with these faults; violates the same invariant
  bool is_fewest = false;  // no smaller set was found that violates it
  std::uint64_t runs = 0;
};

// If the seed violates nothing, only `whole` is set. `progress` is called after every run.
Shrunk shrink(std::uint64_t seed, const std::function<void(std::uint64_t runs)>& progress);

// Describes the result for people. The last line is a command that shows the violation again.
std::string shrunk_text(const Shrunk& shrunk);

// The options that repeat a run: "--seed 7 --faults 1,3".
std::string replay_options(const Settings& settings);

}  // namespace ckpt::sim
