// Compares two or more sides on Google Benchmark, such as our copy and memcpy. Each side is a benchmark that does its
// work once per repetition. The repetitions of all sides run in random order, so that all sides meet the same load. The
// table shows mean, median, standard deviation and counters of each side. A bench compares the medians.
//
// A bench calls initialize() first, and prints its results with print_ratio(), in lines "ratio: NAME = X (ours A,
// theirs B, unit)".
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ckpt::bench {

// Gives the arguments --benchmark_* to Google Benchmark and removes them from `arguments`. Sets our defaults for those
// that are not given.
void initialize(int* count, char** arguments);

struct Side {
  std::string name;
  std::size_t bytes = 0;  // how many bytes the work handles, for its rate; 0: no rate is shown
  // Does the work once and returns how many seconds it took. May set counters.
  std::function<double(benchmark::UserCounters& counters)> run;
};
// Makes a side of which all of `work` is timed.
Side timed(std::string name, std::size_t bytes, std::function<void()> work);

// The medians of one side.
struct Measured {
  double seconds = 0;
  std::map<std::string, double> counters;
};
// Runs each side once to warm up and then `rounds` times, and prints a table. The results are in the order of the
// sides. Throws what a side throws.
std::vector<Measured> measure(const std::string& name, const std::vector<Side>& sides, int rounds);

struct Ratio {
  std::string name;
  double value = 0;
  double ours = 0;
  double theirs = 0;
  std::string unit = "GB/s";
  std::string against = "theirs";
};
void print_ratio(const Ratio& ratio);

double gigabytes_per_second(std::size_t bytes, double seconds);
// The ratio of two rates. It is above 1 if our rate is higher.
Ratio ratio_of_rates(std::string name, double ours, double theirs);
// Measures two sides that each handle `bytes` bytes, and prints the ratio of their rates.
Ratio compare(const std::string& name, std::size_t bytes, int rounds, const std::function<void()>& ours,
              const std::function<void()>& theirs);

}  // namespace ckpt::bench
