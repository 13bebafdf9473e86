// Which faults of a failing seed it takes. Every run here is one that can be had again: the seed, the numbers of the
// faults that it keeps, and a number that stirs chance.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "sim/world.hpp"

namespace ckpt::sim {

struct Shrunk {
  Outcome whole;                 // of the seed as it is
  std::set<std::size_t> faults;  // that are left, by number in the plan, from 1
  std::uint64_t shake = 0;
  Outcome outcome;         // with these; they violate what the seed does
  bool is_fewest = false;  // no smaller set of them does that, as far as was tried
  std::uint64_t runs = 0;
};

// Where the seed violates nothing only `whole` is told. `progress` is called after every run.
Shrunk shrink(std::uint64_t seed, const std::function<void(std::uint64_t runs)>& progress);

// Ends with the command that shows it again.
std::string shrunk_text(const Shrunk& shrunk);

// How a run is had again: "--seed 7 --faults 1,3".
std::string replay_options(const Settings& settings);

}  // namespace ckpt::sim
