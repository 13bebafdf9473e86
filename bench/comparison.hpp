// Compares two or more sides on Google Benchmark, such as our copy and memcpy. Each side is a benchmark that does its
// work once per repetition. The repetitions of all sides run in random order, so that all see the same load. The table
// shows mean, median, standard deviation and counters of each side. A bench compares the medians.
//
// A bench calls initialize() first, and prints its results with print_ratio(). Only that function knows the form of a
// line "ratio: NAME = X (ours A, theirs B, unit)".
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace ckpt::bench {

// Takes the arguments --benchmark_* out of the others, and sets the defaults of ours.
void initialize(int* count, char** arguments);

struct Side {
  std::string name;
  std::size_t bytes = 0;  // that the work handles, for its rate; 0: no rate
  // Does the work once and returns the seconds that it took. May set counters.
  std::function<double(benchmark::UserCounters& counters)> run;
};
// A side whose whole work is timed.
Side timed(std::string name, std::size_t bytes, std::function<void()> work);

struct Measured {
  double seconds = 0;  // medians
  std::map<std::string, double> counters;
};
// Runs each side once to warm up and then `rounds` times, and prints a table. The results are in the order of the
// sides. What a side throws comes out.
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
// Of two rates: above 1 if ours is faster.
Ratio ratio_of_rates(std::string name, double ours, double theirs);
// Measures both sides, which handle as many bytes, and prints their ratio.
Ratio compare(const std::string& name, std::size_t bytes, int rounds, const std::function<void()>& ours,
              const std::function<void()>& theirs);

}  // namespace ckpt::bench
