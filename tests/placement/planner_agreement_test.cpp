// The formulas and the simulation, side by side. They share what a setting does to a job (behavior.hpp) and nothing
// else. Failures are exponential, and new nodes are ordered, as the formulas assume.
#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include "placement/odds/planner/planner.hpp"
#include "placement/odds/planner/simulation.hpp"

namespace ckpt::planner {
namespace {

constexpr double failures_simulated = 20'000;
constexpr double agreed = 0.05;  // of the wasted time

struct Cell {
  std::uint32_t gpus;
  double mtbf_hours;
  double restart_s;
  double iteration_s;
  std::uint32_t replicas;
  std::uint32_t domain_nodes;
  bool domains_named;
};

std::ostream& operator<<(std::ostream& out, const Cell& cell) {
  return out << cell.gpus << " GPUs, MTBF " << cell.mtbf_hours << " h, restart " << cell.restart_s << " s, iteration "
             << cell.iteration_s << " s, " << cell.replicas << " replicas, domains of " << cell.domain_nodes;
}

Inputs inputs_of(const Cell& cell) {
  Inputs in;
  in.cluster.gpus = cell.gpus;
  in.failures.gpu_mtbf_s = 3600 * cell.mtbf_hours;
  in.failures.node_share = 0.78;
  in.failures.domain_nodes = cell.domain_nodes;
  in.failures.domain_share = cell.domain_nodes > 0 ? 0.05 : 0;
  in.failures.domains_named = cell.domains_named;
  in.job.restart_s = cell.restart_s;
  in.job.iteration_s = cell.iteration_s;
  in.job.replicas = cell.replicas;
  return in;
}

std::vector<Cell> grid() {
  std::vector<Cell> cells;
  for (const auto& [gpus, mtbf_hours] : std::vector<std::pair<std::uint32_t, double>>{
           {512, 2'000}, {1'024, 30'000}, {10'000, 10'000}, {10'000, 50'000}, {24'000, 12'000}}) {
    for (const double restart_s : {20.0, 240.0})
      for (const double iteration_s : {1.0, 30.0})
        for (const std::uint32_t replicas : {1u, 4u})
          cells.push_back({gpus, mtbf_hours, restart_s, iteration_s, replicas, 0, true});
    cells.push_back({gpus, mtbf_hours, 240, 10, 1, 16, true});
    cells.push_back({gpus, mtbf_hours, 240, 10, 1, 16, false});
  }
  return cells;
}

struct Difference {
  Candidate candidate;
  double simulated = 0;  // wasted time
  double renewal() const { return (1 - candidate.appraisal.effective_time) / simulated - 1; }
  double first_order() const { return candidate.appraisal.first_order_wasted / simulated - 1; }
};

std::vector<Difference> differences(const Cell& cell) {
  const Inputs in = inputs_of(cell);
  const Planner planner(in);
  std::vector<Difference> found;
  for (const Candidate& each : planner.plan().rows) {
    if (!each.has_figures()) continue;  // this cluster cannot have it
    const auto failures = exponential_failures(in, 1);
    const auto simulated = simulate(in, planner.holdings(each.setting.scheme), each.behavior, *failures,
                                    failures_simulated / each.appraisal.failures_per_s);
    found.push_back({each, 1 - simulated.effective_time});
  }
  return found;
}

TEST(Agreement, RenewalFormIsWithinFivePercentOfTheSimulatedWaste) {
  for (const Cell& cell : grid())
    for (const Difference& each : differences(cell))
      EXPECT_LT(std::abs(each.renewal()), agreed) << each.candidate.setting.scheme.name << " with " << cell;
}

TEST(Agreement, FirstOrderFormMatchesTheSimulationForRareFailures) {
  int counted = 0;
  for (const Cell& cell : grid()) {
    for (const Difference& each : differences(cell)) {
      if (each.candidate.appraisal.first_order_wasted > 0.06) continue;
      ++counted;
      EXPECT_LT(std::abs(each.first_order()), agreed) << each.candidate.setting.scheme.name << " with " << cell;
    }
  }
  EXPECT_GT(counted, 100);
}

TEST(Agreement, FirstOrderFormIsTooOptimisticForFrequentFailures) {
  for (const Difference& each : differences({24'000, 12'000, 240, 10, 1, 0, true}))
    EXPECT_LT(each.first_order(), -agreed) << each.candidate.setting.scheme.name;
}

TEST(Agreement, PartsOfTheWastedTimeAgree) {
  const Inputs in = inputs_of({10'000, 50'000, 240, 10, 4, 0, true});
  const Planner planner(in);
  for (const Candidate& each : planner.plan().rows) {
    const auto failures = exponential_failures(in, 1);
    const auto simulated = simulate(in, planner.holdings(each.setting.scheme), each.behavior, *failures,
                                    failures_simulated / each.appraisal.failures_per_s);
    const Split &formula = each.appraisal.split, &split = simulated.split;
    const double tolerated = agreed * (1 - simulated.effective_time);
    EXPECT_NEAR(formula.steady, split.steady, tolerated) << each.setting.scheme.name;
    EXPECT_NEAR(formula.detection, split.detection, tolerated) << each.setting.scheme.name;
    EXPECT_NEAR(formula.restart, split.restart, tolerated) << each.setting.scheme.name;
    EXPECT_NEAR(formula.redone, split.redone, tolerated) << each.setting.scheme.name;
  }
}

TEST(Agreement, SimulationRepeatsItselfForASeed) {
  const Inputs in = inputs_of({10'000, 50'000, 240, 10, 4, 0, true});
  const Planner planner(in);
  const Candidate each = planner.plan().rows.front();
  const auto run = [&](std::uint64_t seed) {
    const auto failures = exponential_failures(in, seed);
    return simulate(in, planner.holdings(each.setting.scheme), each.behavior, *failures, 3e7).effective_time;
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

}  // namespace
}  // namespace ckpt::planner
