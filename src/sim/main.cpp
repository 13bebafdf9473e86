// ckpt_sim, the simulator: see docs/simulator.md.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <set>
#include <sstream>
#include <string>

#include "sim/campaign.hpp"
#include "sim/scale.hpp"
#include "sim/shrink.hpp"

namespace {

using namespace ckpt;
using namespace ckpt::sim;

// Reads "none", or numbers with commas between them.
std::set<std::size_t> parse_faults(const std::string& list) {
  std::set<std::size_t> numbers;
  if (list == "none") return numbers;
  std::istringstream in(list);
  for (std::string number; std::getline(in, number, ',');) {
    std::size_t end = 0;
    try {
      numbers.insert(std::stoul(number, &end));
    } catch (const std::exception&) {
      end = 0;
    }
    if (end == 0 || end != number.size())
      throw CLI::ValidationError("--faults", "'" + list + "' is not a list of numbers such as 1,3, or none");
  }
  return numbers;
}

int run_one(const Settings& settings, bool trace) {
  World world(settings, trace ? &std::cout : nullptr);
  const Outcome outcome = world.run();
  if (outcome.violation) std::cout << violation_text(outcome, replay_options(settings));
  std::cout << "sim: seeds=1 violations=" << (outcome.violation ? 1 : 0) << '\n';
  return outcome.violation ? 1 : 0;
}

int run_shrinking(std::uint64_t seed) {
  auto shown = std::chrono::steady_clock::now();
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  const auto progress = [&](std::uint64_t runs) {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown < std::chrono::seconds(on_terminal ? 1 : 30)) return;
    shown = now;
    std::cerr << (on_terminal ? "\r" : "") << runs << " runs" << (on_terminal ? "" : "\n") << std::flush;
  };
  const Shrunk shrunk = shrink(seed, progress);
  if (on_terminal) std::cerr << "\r\033[K" << std::flush;
  std::cout << shrunk_text(shrunk) << "sim: seeds=1 violations=" << (shrunk.whole.violation ? 1 : 0) << '\n';
  return shrunk.whole.violation ? 1 : 0;
}

int run_many(const Campaign& campaign) {
  const auto start = std::chrono::steady_clock::now();
  auto shown = start;
  const bool on_terminal = isatty(STDERR_FILENO) == 1;
  // Print it at once, so that a run that is ended early has shown its findings.
  const auto violated = [&](const Outcome& outcome) {
    if (on_terminal) std::cerr << "\r\033[K" << std::flush;
    std::cout << violation_text(outcome, text("--seed ", outcome.seed)) << std::flush;
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

int run_nodes(core::NodeId nodes, std::uint32_t sharers) {
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
  CLI::App app(
      "Runs the protocol's core through simulated faults and checks the invariants of docs/simulator.md after "
      "every event. A seed determines a whole run.");
  Campaign campaign;
  campaign.jobs = 2;
  std::uint64_t seed = 0;
  bool trace = false;
  auto* many = app.add_option("--seeds", campaign.seeds, "run this many seeds")->check(CLI::PositiveNumber);
  app.add_option("--first-seed", campaign.first_seed, "the first of these seeds")->needs(many);
  app.add_option("--jobs", campaign.jobs, "number of threads")->needs(many)->check(CLI::Range(1, 256));
  app.add_option("--violations", campaign.violations_max, "stop after this many violations")
      ->needs(many)
      ->check(CLI::PositiveNumber);
  bool is_mild = false;
  auto* mild = app.add_flag("--mild", is_mild, "leave out the harder faults (docs/simulator.md)");
  auto* one = app.add_option("--seed", seed, "run this one seed")->excludes(many);
  app.add_flag("--trace", trace, "with --seed: print every event of the run")->needs(one);
  std::string faults;
  auto* some = app.add_option("--faults", faults,
                              "with --seed: only these faults of its plan strike; numbers such as 1,3, or none")
                   ->needs(one);
  std::uint64_t shake = 0;
  app.add_option("--shake", shake,
                 "with --faults: number of another sequence of random numbers for the rest of the run")
      ->needs(some);
  bool shrinks = false;
  app.add_flag("--shrink", shrinks,
               "with --seed: find the fewest faults with which the run still violates the invariant")
      ->needs(one)
      ->excludes(some)
      ->excludes(mild);
  core::NodeId nodes = 0;
  auto* scale = app.add_option("--scale", nodes, "measure the protocol with this many nodes (docs/performance.md)")
                    ->excludes(many)
                    ->excludes(one)
                    ->check(CLI::Range(scale_nodes_min, scale_nodes_max));
  std::uint32_t sharers = 1;
  app.add_option("--sharers", sharers, "with --scale: this many ranks share each main shard")
      ->needs(scale)
      ->check(CLI::Range(scale_sharers_min, scale_nodes_max));
  app.callback([&] {
    if (scale->count() > 0 && sharers > nodes)
      throw CLI::ValidationError("--sharers", "must not be larger than --scale");
    if (many->count() + one->count() + scale->count() == 0)
      throw CLI::RequiredError("one of --seeds, --seed and --scale");
  });
  CLI11_PARSE(app, argc, argv);
  if (scale->count() > 0) return run_nodes(nodes, sharers);
  campaign.is_hard = !is_mild;
  if (one->count() == 0) return run_many(campaign);
  if (shrinks) return run_shrinking(seed);
  Settings settings = draw_settings(seed);
  settings.is_hard = !is_mild;
  try {
    if (some->count() > 0) settings.only_faults = parse_faults(faults);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  settings.shake = shake;
  return run_one(settings, trace);
}
