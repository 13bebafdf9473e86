// ckpt_sim: see docs/simulator.md.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "sim/campaign.hpp"
#include "sim/scale.hpp"

namespace {

using namespace ckpt;
using namespace ckpt::sim;

int run_one(std::uint64_t seed, bool trace) {
  const Outcome outcome = run_seed(seed, trace ? &std::cout : nullptr);
  if (outcome.violation) std::cout << violation_text(outcome);
  std::cout << "sim: seeds=1 violations=" << (outcome.violation ? 1 : 0) << '\n';
  return outcome.violation ? 1 : 0;
}

int run_many(const Campaign& campaign) {
  const auto start = std::chrono::steady_clock::now();
  auto shown = start;
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  // At once: a run that is ended early has shown what it found.
  const auto violated = [&](const Outcome& outcome) {
    if (on_terminal) std::cerr << "\r\033[K" << std::flush;
    std::cout << violation_text(outcome) << std::flush;
  };
  const auto progress = [&](std::uint64_t done) {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown < std::chrono::seconds(on_terminal ? 1 : 30)) return;
    shown = now;
    std::cerr << (on_terminal ? "\r" : "") << done << " of " << campaign.seeds << " seeds" << (on_terminal ? "" : "\n")
              << std::flush;
  };
  const CampaignResult result = run_campaign(campaign, {violated, progress});
  if (on_terminal && shown != start) std::cerr << "\r\033[K" << std::flush;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;

  std::cout << fault_table_text(result.faults) << '\n' << tally_text(result);
  std::cout << took.count() << " s, " << took.count() * 1000 * campaign.jobs / static_cast<double>(result.seeds)
            << " ms per seed and thread\n\n";
  if (result.seeds < campaign.seeds) std::cout << "stopped early: enough violations\n";
  std::cout << "sim: seeds=" << result.seeds << " violations=" << result.violations.size() << '\n';
  return result.violations.empty() ? 0 : 1;
}

int run_nodes(protocol::NodeId nodes, std::uint32_t sharers) {
  auto shown = std::chrono::steady_clock::now();
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  const auto progress = [&](const std::string& what) {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown < std::chrono::seconds(on_terminal ? 1 : 30)) return;
    shown = now;
    std::cerr << (on_terminal ? "\r" : "") << what << (on_terminal ? "\033[K" : "\n") << std::flush;
  };
  const ScaleResult result = run_scale(nodes, sharers, progress);
  if (on_terminal) std::cerr << "\r\033[K" << std::flush;
  std::cout << scale_text(result);
  return result.violations.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs the protocol core through simulated faults and checks its invariants after every event.");
  Campaign campaign;
  campaign.jobs = 2;
  std::uint64_t seed = 0;
  bool trace = false;
  auto* many = app.add_option("--seeds", campaign.seeds, "how many seeds to run")->check(CLI::PositiveNumber);
  app.add_option("--first-seed", campaign.first_seed, "the first of them")->needs(many);
  app.add_option("--jobs", campaign.jobs, "threads")->needs(many)->check(CLI::Range(1, 256));
  app.add_option("--violations", campaign.violations_max, "stop after so many violations")
      ->needs(many)
      ->check(CLI::PositiveNumber);
  auto* one = app.add_option("--seed", seed, "run this one seed")->excludes(many);
  app.add_flag("--trace", trace, "print its events")->needs(one);
  protocol::NodeId nodes = 0;
  auto* scale =
      app.add_option("--scale", nodes, "measure what the protocol costs with so many nodes, see docs/scale.md")
          ->excludes(many)
          ->excludes(one)
          ->check(CLI::Range(scale_nodes_min, scale_nodes_max));
  std::uint32_t sharers = 1;
  app.add_option("--sharers", sharers, "so many ranks share each main shard")
      ->needs(scale)
      ->check(CLI::Range(scale_sharers_min, scale_nodes_max));
  app.callback([&] {
    if (scale->count() > 0 && sharers > nodes) throw CLI::ValidationError("--sharers", "more than there are nodes");
    if (many->count() + one->count() + scale->count() == 0)
      throw CLI::RequiredError("one of --seeds, --seed and --scale");
  });
  CLI11_PARSE(app, argc, argv);
  if (scale->count() > 0) return run_nodes(nodes, sharers);
  return one->count() > 0 ? run_one(seed, trace) : run_many(campaign);
}
