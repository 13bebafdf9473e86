#include "sim/campaign.hpp"

#include <algorithm>
#include <atomic>
#include <iomanip>
#include <iterator>
#include <mutex>
#include <sstream>
#include <thread>

namespace ckpt::sim {

namespace {

void add(const Outcome& outcome, CampaignResult& result) {
  ++result.seeds;
  result.steps += outcome.steps;
  result.virtual_ms += outcome.virtual_ms;
  result.tally.add(outcome.tally);
  for (std::size_t fault = 0; fault < fault_count; ++fault) {
    for (std::size_t phase = 0; phase < phase_count; ++phase)
      result.faults[fault][phase] += outcome.faults[fault][phase];
  }
  if (outcome.violation) result.violations.push_back(outcome);
}

// What the invariant demands, as in docs/simulator.md.
std::string rule_text(const std::string& invariant) {
  constexpr const char* rules[] = {
      "all ranks restore the right bytes",
      "nothing committed is lost",
      "no loss is silent, and none is claimed wrongly",
      "nothing of an older epoch or incarnation counts",
      "no slot has two uses, and no more slots are used than configured",
      "once faults stop, the job restores and commits",
      "nobody calls an unprotected job protected",
      "the right rank is named for a hang",
      "a halt names the right rank",
      "what a rank froze at stays as it is, and is what it restores",
      "the newest whole state is restored",
      "no incarnation ends before its ranks that obey are frozen",
      "a repeated update counts only with its owner's bytes, and is repeated where it can"};
  for (std::size_t i = 0; i < std::size(rules); ++i)
    if (invariant == text("I", i + 1)) return rules[i];
  return "the core throws no exception";
}

}  // namespace

CampaignResult run_campaign(const Campaign& campaign, const CampaignObserver& observer) {
  CampaignResult result;
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> enough{false};
  const auto work = [&] {
    for (std::uint64_t i = next++; i < campaign.seeds && !enough; i = next++) {
      Settings settings = draw_settings(campaign.first_seed + i);
      settings.is_hard = campaign.is_hard;
      const Outcome outcome = World(settings, nullptr).run();
      const std::lock_guard lock(mutex);
      add(outcome, result);
      enough = result.violations.size() >= campaign.violations_max;
      if (outcome.violation) observer.violated(outcome);
      observer.progress(result.seeds);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned job = 1; job < campaign.jobs; ++job) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::sort(result.violations.begin(), result.violations.end(),
            [](const Outcome& left, const Outcome& right) { return left.seed < right.seed; });
  return result;
}

std::string fault_table_text(const FaultTable& faults) {
  std::ostringstream out;
  out << std::left << std::setw(20) << "fault \\ phase" << std::right;
  for (const char* phase : phase_names) out << std::setw(13) << phase;
  out << '\n';
  for (std::size_t fault = 0; fault < fault_count; ++fault) {
    out << std::left << std::setw(20) << fault_names[fault] << std::right;
    for (std::size_t phase = 0; phase < phase_count; ++phase) {
      if (is_possible(static_cast<Fault>(fault), static_cast<Phase>(phase))) {
        out << std::setw(13) << faults[fault][phase];
      } else {
        out << std::setw(13) << "-";
      }
    }
    out << '\n';
  }
  return out.str();
}

std::string tally_text(const CampaignResult& result) {
  const Tally& tally = result.tally;
  return text("commits ", tally.commits, "; rank restores ", tally.restores, ", ", tally.from_peer,
              " with a part from a peer, ", tally.decoded, " from parity, ", tally.from_storage,
              " from storage; members told as lost ", tally.notified_lost, "; hangs named ", tally.named,
              "; incarnations halted ", tally.halts, ", ranks captured late ", tally.late_captures, ", restored so ",
              tally.late_restores, ", rejoined ", tally.rejoined, ", kept their tensors ", tally.kept,
              ", started anew alone ", tally.started_anew, "; updates repeated ", tally.repeated, " (in vain ",
              tally.repeated_in_vain, ", not possible ", tally.not_repeated, "); standby nodes put in place ",
              tally.replaced, "; steps stored ", tally.stored, "; restarts of the job ", tally.restarts,
              "; incarnations decided: ", tally.decided_restore, " restore (", tally.decided_behind, " behind, ",
              tally.decided_elastic, " by another number of ranks, ", tally.decided_resplit,
              " by as many with another split), ", tally.decided_fresh, " fresh, ", tally.decided_lost,
              " lost, of all ", tally.decided_unknown, " with commit status unknown; elections ", tally.elections,
              "; pieces quarantined ", tally.quarantined, "; reports passed on by relays ", tally.relayed,
              "; runs with an alarm ", tally.alarms, "; jobs given up ", tally.given_up, "; slowest recovery ",
              tally.slowest_recovery_ms, " ms; slowest commit while all was well ", tally.slowest_commit_ms, " ms\n",
              result.steps, " steps, ", result.virtual_ms / 1000, " s of virtual time\n");
}

std::string violation_text(const Outcome& outcome, const std::string& options) {
  return text("seed ", outcome.seed, " at ", outcome.virtual_ms, " ms: ", outcome.violation->invariant, ": ",
              outcome.violation->text, "\n  rule: ", rule_text(outcome.violation->invariant),
              " (docs/simulator.md)\n  again: ckpt_sim ", options, " --trace\n");
}

}  // namespace ckpt::sim
