// Simulates a year of 100,000 GPUs in two ways: from failure to failure, as `ckptctl plan --simulate` does, and in a
// plain loop over iterations. Both simulate copies(2) in every iteration, and must find the same effective time. The
// end shows the seconds per simulated GPU-year of both, and their ratio.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "bench/comparison.hpp"
#include "placement/odds/planner/planner.hpp"
#include "placement/odds/planner/simulation.hpp"
#include "placement/odds/sampling.hpp"

namespace {

using namespace ckpt::planner;

constexpr double year_s = 365 * 86'400.0;
constexpr std::uint32_t gpus = 100'000;
constexpr std::uint64_t seed = 1;

Inputs inputs() {
  Inputs in;
  in.cluster.gpus = gpus;
  in.failures.gpu_mtbf_s = published_rate("llama3").gpu_mtbf_s;
  in.failures.node_share = published_rate("llama3").node_share;
  return in;
}

// Simulates one iteration after another. After a failure, the job goes back to the newest committed iteration.
double plain_loop(const Inputs& in, const Behavior& what) {
  ckpt::placement::Random random(seed);
  const double failures_per_s = in.cluster.gpus / in.failures.gpu_mtbf_s;
  const double iteration_s = in.job.iteration_s * (1 + what.slowdown_share) + what.stall_s;
  const double lag_s = what.lag_s[index(Source::memory)];
  const auto next_failure_s = [&] { return -std::log1p(-ckpt::placement::random_share(random)) / failures_per_s; };
  double now_s = 0, failure_s = next_failure_s(), committed = 0, done = 0, captured_s = -lag_s;
  while (now_s < year_s) {
    if (now_s + iteration_s <= failure_s) {
      now_s += iteration_s;
      if (now_s - captured_s >= lag_s) committed = done, captured_s = now_s;
      done += 1;
      continue;
    }
    now_s = failure_s;
    double back_s = now_s;
    while (failure_s <= back_s) {
      const Fault fault = ckpt::placement::random_share(random) < in.failures.node_share ? Fault::node : Fault::process;
      back_s = std::max(back_s, failure_s + what.detection_s + what.restart_s[index(fault)][index(Source::memory)]);
      failure_s += next_failure_s();
    }
    now_s = back_s;
    done = committed;
    captured_s = now_s;
  }
  return done * in.job.iteration_s / now_s;
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::bench::initialize(&argc, argv);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  const Inputs in = inputs();
  const Planner planner(in);
  const Plan plan = planner.plan();
  const auto row = std::find_if(plan.rows.begin(), plan.rows.end(),
                                [](const Candidate& each) { return each.setting.scheme.name == "every iteration"; });
  double ours = 0, theirs = 0;
  const auto found = ckpt::bench::measure(
      "plan_year",
      {ckpt::bench::timed(
           "events", 0,
           [&] {
             const auto failures = exponential_failures(in, seed);
             ours =
                 simulate(in, planner.holdings(row->setting.scheme), row->behavior, *failures, year_s).effective_time;
           }),
       ckpt::bench::timed("loop", 0, [&] { theirs = plain_loop(in, row->behavior); })},
      rounds);
  std::printf("effective time: %.4f from failure to failure, %.4f in a plain loop\n", ours, theirs);
  if (std::abs(ours - theirs) > 0.01) {
    std::fprintf(stderr, "bench_plan: the two simulations disagree\n");
    return 1;
  }
  std::printf("a year of %u GPUs: %.4f s, %.3g s per simulated GPU-year\n", gpus, found[0].seconds,
              found[0].seconds / gpus);
  ckpt::bench::print_ratio({.name = "plan_year",
                            .value = found[1].seconds / found[0].seconds,
                            .ours = found[0].seconds / gpus,
                            .theirs = found[1].seconds / gpus,
                            .unit = "s per simulated GPU-year"});
}
