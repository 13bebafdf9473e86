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
  unsigned jobs = 1;
  std::uint64_t violations_max = 20;  // stop after this many
  bool is_hard = true;                // include the faults that are drawn last, if the seed has any
};

struct CampaignResult {
  std::uint64_t seeds = 0;          // seeds that were run
  std::vector<Outcome> violations;  // by seed
  FaultTable faults{};
  Tally tally;
  std::uint64_t steps = 0;
  TimeMs virtual_ms = 0;
};

// What run_campaign() calls: `violated` for each violation, `progress` after every seed. Only one thread calls at a
// time.
struct CampaignObserver {
  std::function<void(const Outcome&)> violated;
  std::function<void(std::uint64_t done)> progress;
};
CampaignResult run_campaign(const Campaign& campaign, const CampaignObserver& observer);

// For people: how often each fault struck in each phase ("-": it cannot), and what else happened.
std::string fault_table_text(const FaultTable& faults);
std::string tally_text(const CampaignResult& result);
// Seed, time, invariant, sentence, and the command that shows it again with these options.
std::string violation_text(const Outcome& outcome, const std::string& options);

}  // namespace ckpt::sim
