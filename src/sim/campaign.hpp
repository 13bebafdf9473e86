// Many seeds on several threads. The result is the same however many there are.
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
  std::uint64_t violations_max = 20;  // stop after so many
  bool is_hard = true;                // with the faults that are drawn last, where the seed has any
};

struct CampaignResult {
  std::uint64_t seeds = 0;          // that were run
  std::vector<Outcome> violations;  // by seed
  FaultTable faults{};
  Tally tally;
  std::uint64_t steps = 0;
  TimeMs virtual_ms = 0;
};

// Both are called from one thread at a time: `violated` as violations come, `progress` after every seed.
struct CampaignObserver {
  std::function<void(const Outcome&)> violated;
  std::function<void(std::uint64_t done)> progress;
};
CampaignResult run_campaign(const Campaign& campaign, const CampaignObserver& observer);

// For people: how often each fault struck in each phase ("-": it cannot), and what happened besides.
std::string fault_table_text(const FaultTable& faults);
std::string tally_text(const CampaignResult& result);
// Seed, time, invariant, sentence, and how to see it again, with these options.
std::string violation_text(const Outcome& outcome, const std::string& options);

}  // namespace ckpt::sim
