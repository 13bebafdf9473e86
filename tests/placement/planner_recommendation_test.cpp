// The recommendation against settings that the planner did not choose from: on random clusters, the simulation tries
// other protections and frequencies, and none may train more than 1 % more of the time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "placement/odds/planner/planner.hpp"
#include "placement/odds/planner/simulation.hpp"
#include "placement/odds/sampling.hpp"

namespace ckpt::planner {
namespace {

using placement::Protection;
using placement::Random;
using placement::random_share;

constexpr double tolerated = 0.01;  // of the elapsed time

double between(Random& random, double low, double high) {
  return low * std::pow(high / low, random_share(random));  // all magnitudes alike
}

Inputs random_inputs(std::uint64_t seed) {
  Random random(seed);
  Inputs in;
  in.cluster.gpus = static_cast<std::uint32_t>(between(random, 256, 60'000)) / 8 * 8;
  in.failures.gpu_mtbf_s = 3600 * between(random, 8'000, 100'000);
  in.failures.node_share = random_share(random);
  in.job.iteration_s = between(random, 0.3, 60);
  in.job.state_bytes = between(random, 1e10, 1e13);
  in.job.replicas = random_share(random) < 0.5 ? 1 : 2;
  in.job.idle_share = between(random, 0.02, 0.6);
  in.job.restart_s = between(random, 10, 600);
  in.job.detection_s = between(random, 2, 120);
  in.cluster.storage_bytes_per_s = between(random, 1e9, 2e12);
  in.cluster.network_bytes_per_s = between(random, 2e9, 1e11);
  in.cluster.pcie_bytes_per_s = between(random, 4e9, 6e10);
  in.overheads.traffic_share = between(random, 1e-4, 0.05);
  in.failures.domain_nodes = random_share(random) < 0.3 ? 8 : 0;
  in.failures.domain_share = in.failures.domain_nodes > 0 ? between(random, 0.001, 0.1) : 0;
  in.failures.domains_named = random_share(random) < 0.5;
  return in;
}

std::vector<Scheme> rivals() {
  std::vector<Scheme> schemes;
  for (const Protection& protection :
       {Protection{1, 0, 0}, Protection{2, 0, 0}, Protection{3, 0, 0}, Protection{4, 0, 0}, Protection{1, 4, 1},
        Protection{1, 16, 1}, Protection{1, 8, 2}, Protection{1, 16, 3}, Protection{2, 8, 1}})
    schemes.push_back(scheme_of(protection));
  return schemes;
}

double simulated_effective_time(const Inputs& in, const Planner& planner, const Candidate& candidate,
                                double simulated_failures) {
  const auto failures = exponential_failures(in, 7);
  return simulate(in, planner.holdings(candidate.setting.scheme), candidate.behavior, *failures,
                  simulated_failures / candidate.appraisal.failures_per_s)
      .effective_time;
}

struct Tried {
  Candidate candidate;
  double effective_time = 0;
};

// Every rival at every frequency that fits, simulated for a short time, the best first.
std::vector<Tried> try_rivals(const Inputs& in, const Planner& planner) {
  std::vector<Tried> tried;
  for (const Scheme& scheme : rivals()) {
    if (!why_not(in, scheme).empty()) continue;
    for (const double iterations : {1.0, 3.0, 10.0, 40.0, 200.0, 1000.0}) {
      for (const double storage_s : {60.0, 900.0, 5400.0, 36'000.0}) {
        const Candidate each = planner.candidate(in, {scheme, iterations, storage_s, 3});
        if (each.fits()) tried.push_back({each, simulated_effective_time(in, planner, each, 500)});
      }
    }
  }
  std::sort(tried.begin(), tried.end(),
            [](const Tried& a, const Tried& b) { return a.effective_time > b.effective_time; });
  return tried;
}

int clusters() {
  const char* text = std::getenv("CKPTENGINE_TEST_CLUSTERS");  // more of them nightly
  return text != nullptr ? std::atoi(text) : 20;
}

TEST(Recommendation, IsWithinOnePercentOfTheBestSettingOnRandomClusters) {
  int protections_differ = 0;
  std::string first;
  for (int seed = 1; seed <= clusters(); ++seed) {
    const Inputs in = random_inputs(static_cast<std::uint64_t>(seed));
    const Planner planner(in);
    const Plan plan = planner.plan();
    const Planner other(in, rivals());
    const auto tried = try_rivals(in, other);
    if (!plan.recommended) {
      EXPECT_TRUE(tried.empty()) << "seed " << seed << ": something fits, and the planner found nothing";
      continue;
    }
    const Candidate& chosen = plan.rows[*plan.recommended];
    const double reached = simulated_effective_time(in, planner, chosen, 10'000);
    for (std::size_t i = 0; i < std::min<std::size_t>(tried.size(), 3); ++i) {
      const Candidate& rival = tried[i].candidate;
      EXPECT_LT(simulated_effective_time(in, other, rival, 10'000), reached + tolerated)
          << "seed " << seed << ": " << rival.setting.scheme.name << " every " << rival.setting.iterations
          << " iterations, storage every " << rival.setting.storage_every_s << " s, against "
          << chosen.setting.scheme.name << " every " << chosen.setting.iterations << ", "
          << chosen.setting.storage_every_s << " s";
    }
    if (first.empty()) first = chosen.setting.scheme.name;
    protections_differ += chosen.setting.scheme.name != first ? 1 : 0;
  }
  EXPECT_GT(protections_differ, 0) << "the clusters are too much alike to test anything";
}

}  // namespace
}  // namespace ckpt::planner
