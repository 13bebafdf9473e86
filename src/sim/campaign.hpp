// Runs the simulator with many seeds, on several threads. The result does not depend on the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/world.hpp"

namespace ckpt::sim {

struct Campaign {
  std::uint64_t first_seed = 0;
  std::uint64_t seeds = 0;
  unsigned jobs = 1;                  // threads
  std::uint64_t violations_max = 20;  // the campaign stops after so many
  bool is_hard = true;                // false: leaves out the harder faults (docs/simulator.md)
};

struct CampaignResult {
  std::uint64_t seeds = 0;          // seeds that were run
  std::vector<Outcome> violations;  // sorted by seed
  FaultTable faults{};
  Tally tally;
  std::uint64_t steps = 0;
  TimeMs virtual_ms = 0;
};

// Functions that run_campaign() calls: `violated` for each violation, and `progress` after every seed. Any of its
// threads may call, but only one at a time.
struct CampaignObserver {
  std::function<void(const Outcome&)> violated;
  std::function<void(std::uint64_t done)> progress;
};
CampaignResult run_campaign(const Campaign& campaign, const CampaignObserver& observer);

// Texts for people: how often each fault struck in each phase ("-": it cannot strike there), and what else happened.
std::string fault_table_text(const FaultTable& faults);
std::string tally_text(const CampaignResult& result);
// A text for people: the seed, the time, the invariant, a sentence, the rule in words, and the command that repeats the
// run. `options` are the options of that command.
std::string violation_text(const Outcome& outcome, const std::string& options);

}  // namespace ckpt::sim
