// Measures placements, their lists of transfers, and odds, for up to 100,000 nodes. Fits how the time grows: linearly,
// except for placements with failure domains, which sort. `bytes_per_node` is the most memory that placement and list
// had at once. The last line compares the time for placement, list and survival check of 100,000 nodes with the goal of
// 1 s.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "bench/comparison.hpp"
#include "placement/odds/recovery_plan.hpp"
#include "placement/odds/sampling.hpp"
#include "placement/odds/survival.hpp"
#include "placement/placement.hpp"

// Counts allocated bytes. The bench has only one thread.
static std::size_t held_bytes = 0;
static std::size_t most_held_bytes = 0;

[[gnu::noinline]] void* operator new(std::size_t size_bytes) {
  void* memory = std::malloc(size_bytes);
  if (memory == nullptr) throw std::bad_alloc();
  held_bytes += malloc_usable_size(memory);
  most_held_bytes = std::max(most_held_bytes, held_bytes);
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  held_bytes -= malloc_usable_size(memory);
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  held_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

namespace {

using namespace ckpt::placement;

constexpr std::uint32_t copies = 3;

Domains racks_of(std::uint32_t nodes, std::uint32_t rack_nodes) {
  std::vector<std::uint32_t> rack_of(nodes);
  for (std::uint32_t node = 0; node < nodes; ++node) rack_of[node] = node / rack_nodes;
  return Domains::flat(rack_of);
}

// Every hundredth node is lost.
LostNodes some_lost(std::uint32_t nodes) {
  LostNodes lost(nodes);
  Random random(1);
  for (std::uint32_t i = 0; i < nodes / 100; ++i) lost.add(random_below(random, nodes));
  return lost;
}

std::size_t place_and_list(std::uint32_t nodes, Strategy strategy, const Domains* domains, const LostNodes& lost) {
  const Placement placement = place({.strategy = strategy, .nodes = nodes, .copies = copies, .domains = domains});
  return placement.transfers().size() + (survives(placement, lost) ? 1 : 0);
}

void BM_PlaceAndList(benchmark::State& state, Strategy strategy, bool with_domains) {
  const auto nodes = static_cast<std::uint32_t>(state.range(0));
  const Domains domains = racks_of(nodes, 16);
  const LostNodes lost = some_lost(nodes);
  const std::size_t before_bytes = most_held_bytes = held_bytes;
  for (auto _ : state) {
    benchmark::DoNotOptimize(place_and_list(nodes, strategy, with_domains ? &domains : nullptr, lost));
  }
  state.counters["bytes_per_node"] = static_cast<double>(most_held_bytes - before_bytes) / nodes;
  state.SetComplexityN(nodes);
}

void BM_Odds(benchmark::State& state, Strategy strategy) {
  const auto nodes = static_cast<std::uint32_t>(state.range(0));
  const Pattern pattern(strategy, nodes, copies);
  for (auto _ : state) benchmark::DoNotOptimize(survival_odds(pattern, nodes / 100));
  state.SetComplexityN(nodes);
}

void sizes(benchmark::internal::Benchmark* bench) {
  for (const int nodes : {1'000, 5'000, 20'000, 50'000, 100'000}) bench->Arg(nodes);
  bench->Unit(benchmark::kMillisecond);
}

void register_all() {
  for (const auto strategy : all_strategies) {
    const std::string label(name(strategy));
    benchmark::RegisterBenchmark(("plan/" + label).c_str(), BM_PlaceAndList, strategy, false)
        ->Apply(sizes)
        ->Complexity(benchmark::oN);
    benchmark::RegisterBenchmark(("plan_with_racks/" + label).c_str(), BM_PlaceAndList, strategy, true)
        ->Apply(sizes)
        ->Complexity(benchmark::oNLogN);
    // Not linear: for the ring, the integral has fewer points than there are nodes, and without copies there is nothing
    // to do.
    if (strategy == Strategy::ring || strategy == Strategy::sharded) continue;
    benchmark::RegisterBenchmark(("odds/" + label).c_str(), BM_Odds, strategy)->Apply(sizes)->Complexity(benchmark::oN);
  }
}

// The slowest strategy, with failure domains.
void measure_goal() {
  constexpr std::uint32_t nodes = 100'000;
  constexpr double goal_s = 1;
  const Domains domains = racks_of(nodes, 16);
  const LostNodes lost = some_lost(nodes);
  std::vector<ckpt::bench::Side> sides;
  for (const auto strategy : all_strategies) {
    sides.push_back(ckpt::bench::timed(std::string(name(strategy)), 0, [&, strategy] {
      benchmark::DoNotOptimize(place_and_list(nodes, strategy, &domains, lost));
    }));
  }
  double slowest_s = 0;
  for (const auto& found : ckpt::bench::measure("placement_and_plan_100k", sides, 3))
    slowest_s = std::max(slowest_s, found.seconds);
  ckpt::bench::print_ratio({.name = "placement_and_plan_100k",
                            .value = slowest_s / goal_s,
                            .ours = slowest_s,
                            .theirs = goal_s,
                            .unit = "s"});
}

}  // namespace

int main(int argc, char** argv) {
  ckpt::bench::initialize(&argc, argv);
  if (argc > 1) {
    std::fprintf(stderr, "usage: bench_placement [--benchmark_...]\n");
    return 2;
  }
  register_all();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::ClearRegisteredBenchmarks();
  measure_goal();
}
