#include "bench/comparison.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>

namespace ckpt::bench {
namespace {

// Prints the table and keeps the medians.
class MedianReporter : public benchmark::ConsoleReporter {
 public:
  MedianReporter() : ConsoleReporter(OO_Tabular) {}

  bool ReportContext(const Context& context) override {
    name_field_width_ = context.name_field_width;
    printed_header_ = false;
    prev_counters_.clear();
    return true;
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      const bool is_alone = run.run_type == Run::RT_Iteration && run.repetitions <= 1;
      if (!is_alone && run.aggregate_name != "median") continue;
      Measured& measured = medians_[run.run_name.function_name];
      measured.seconds = run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit);
      for (const auto& [name, counter] : run.counters) measured.counters[name] = counter.value;
    }
  }
  const Measured& median(const std::string& name) const { return medians_.at(name); }

 private:
  std::map<std::string, Measured> medians_;
};

void run_once(benchmark::State& state, const Side& side, std::exception_ptr& failure) {
  for (auto _ : state) {
    try {
      state.SetIterationTime(side.run(state.counters));
    } catch (...) {
      failure = std::current_exception();
      state.SkipWithError("it failed");
      break;
    }
  }
  if (side.bytes != 0) state.SetBytesProcessed(static_cast<std::int64_t>(side.bytes));
}

}  // namespace

void initialize(int* count, char** arguments) {
  // The user's arguments come after these defaults, so they win.
  std::string interleaving = "--benchmark_enable_random_interleaving=true";
  std::vector<char*> all{arguments[0], interleaving.data()};
  std::vector<char*> rest{arguments[0]};
  for (int i = 1; i < *count; ++i)
    (std::string(arguments[i]).starts_with("--benchmark_") ? all : rest).push_back(arguments[i]);
  int all_count = static_cast<int>(all.size());
  all.push_back(nullptr);
  benchmark::Initialize(&all_count, all.data());
  if (benchmark::ReportUnrecognizedArguments(all_count, all.data())) std::exit(2);
  *count = static_cast<int>(rest.size());
  std::copy(rest.begin(), rest.end(), arguments);
  arguments[*count] = nullptr;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
}

Side timed(std::string name, std::size_t bytes, std::function<void()> work) {
  return {std::move(name), bytes, [work = std::move(work)](benchmark::UserCounters&) {
            const auto begin = std::chrono::steady_clock::now();
            work();
            return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
          }};
}

std::vector<Measured> measure(const std::string& name, const std::vector<Side>& sides, int rounds) {
  std::exception_ptr failure;
  for (const Side& side : sides) {
    benchmark::UserCounters unused;
    side.run(unused);
    benchmark::RegisterBenchmark((name + "/" + side.name).c_str(),
                                 [&side, &failure](benchmark::State& state) { run_once(state, side, failure); })
        ->Iterations(1)
        ->Repetitions(rounds)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->ReportAggregatesOnly();
  }
  MedianReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter, ".");  // runs all sides, even if --benchmark_filter names some
  benchmark::ClearRegisteredBenchmarks();
  if (failure) std::rethrow_exception(failure);
  std::vector<Measured> all;
  for (const Side& side : sides) all.push_back(reporter.median(name + "/" + side.name));
  return all;
}

void print_ratio(const Ratio& ratio) {
  std::printf("ratio: %s = %.3f (ours %.4g, %s %.4g, %s)\n", ratio.name.c_str(), ratio.value, ratio.ours,
              ratio.against.c_str(), ratio.theirs, ratio.unit.c_str());
  std::fflush(stdout);
}

double gigabytes_per_second(std::size_t bytes, double seconds) { return 1e-9 * static_cast<double>(bytes) / seconds; }

Ratio ratio_of_rates(std::string name, double ours, double theirs) {
  return {.name = std::move(name), .value = ours / theirs, .ours = ours, .theirs = theirs};
}

Ratio compare(const std::string& name, std::size_t bytes, int rounds, const std::function<void()>& ours,
              const std::function<void()>& theirs) {
  const auto found = measure(name, {timed("ours", bytes, ours), timed("theirs", bytes, theirs)}, rounds);
  Ratio ratio = ratio_of_rates(name, gigabytes_per_second(bytes, found[0].seconds),
                               gigabytes_per_second(bytes, found[1].seconds));
  print_ratio(ratio);
  return ratio;
}

}  // namespace ckpt::bench
