// StepPacer decides how many steps of an exchange a member promises, and how large their chunks are, for GPU
// replication (gpu_replication/exchange.hpp). The steps shall end before training communicates again. This is Algorithm
// 2 of GEMINI (SOSP'23, section 5.3), for chunks that all members issue together. StepPacer learns from earlier steps
// how long a step takes. It has no clock: callers pass times in, in seconds of any one clock.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "schedule/idle_forecast.hpp"
#include "schedule/link_estimate.hpp"

namespace ckpt::schedule {

// What a member knows of its own training.
struct Training {
  IdleForecast idle_forecast;
  double longest_idle_s = std::numeric_limits<double>::infinity();  // in an iteration; infinite if unknown
};

class StepPacer {
 public:
  // Chunks are multiples of a grain. `buffers`: most steps under way.
  StepPacer(std::uint64_t grain_bytes, std::uint64_t chunk_bytes_max, std::uint32_t buffers)
      : grain_bytes_(grain_bytes), chunk_bytes_max_(chunk_bytes_max), buffers_(buffers) {}

  // The size of chunks for the next exchange, at least a grain: all that may be under way fits into the longest idle
  // span.
  std::uint64_t chunk_bytes(const Training& training) const;
  // An exchange begins. The longest piece has `longest_bytes`. Nothing of the exchange before is under way.
  void begin(std::uint64_t chunk_bytes, std::uint64_t longest_bytes);
  // `ready` steps are in sub-buffers. Returns how many are promised, a number that never falls. The first step of an
  // exchange goes at any idle moment, so the time of steps stays known even if none seems to fit.
  std::uint64_t promise(std::uint64_t ready, const Training& training);
  // All members have promised this many steps; this many have arrived.
  void allowed(double now_s, std::uint64_t steps);
  void received(double now_s, std::uint64_t steps);

 private:
  std::uint64_t fitting_bytes(double idle_s) const;

  // Steps that were issued while none was under way. The sample ends when the last of them arrives.
  struct Sample {
    double began_s;
    std::uint64_t first_step, end_step;
  };

  const std::uint64_t grain_bytes_, chunk_bytes_max_;
  const std::uint32_t buffers_;
  LinkEstimate estimate_;  // of chunks: a step moves one of each member
  std::optional<Sample> sample_;
  std::uint64_t chunk_bytes_ = 1, longest_bytes_ = 0;
  std::uint64_t promised_ = 0, allowed_ = 0, received_ = 0;  // steps
};

}  // namespace ckpt::schedule
