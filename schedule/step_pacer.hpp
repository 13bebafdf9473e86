// StepPacer decides for GPU replication (gpu_replication/exchange.hpp) how many steps of an exchange a member promises,
// and how large their chunks are. Here a member is a rank of the replication group. In a step, every member sends one
// chunk. The steps shall end before training communicates again. This is Algorithm 2 of GEMINI (SOSP'23, section 5.3).
// StepPacer learns from earlier steps how long a step takes. It has no clock: callers pass times in, in seconds of any
// one clock. Not thread-safe.
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
  // Length of the longest idle span in an iteration; infinite if unknown.
  double longest_idle_s = std::numeric_limits<double>::infinity();
};

class StepPacer {
 public:
  // Chunks are multiples of `grain_bytes`, at most `chunk_bytes_max`. `buffers`: how many steps may be under way.
  StepPacer(std::uint64_t grain_bytes, std::uint64_t chunk_bytes_max, std::uint32_t buffers)
      : grain_bytes_(grain_bytes), chunk_bytes_max_(chunk_bytes_max), buffers_(buffers) {}

  // The size of chunks for the next exchange, at least a grain. All chunks that may be under way at once together fit
  // into the longest idle span.
  std::uint64_t chunk_bytes(const Training& training) const;
  // An exchange begins, with chunks of this size. The longest piece of a member has `longest_bytes`. No step of the
  // exchange before may be under way.
  void begin(std::uint64_t chunk_bytes, std::uint64_t longest_bytes);
  // `ready`: how many steps this member has in sub-buffers, since the exchange began. Returns how many steps it
  // promises, since the exchange began. The number never falls. The first step is promised at any idle moment. So the
  // time of a step stays known, even if no step seems to fit.
  std::uint64_t promise(std::uint64_t ready, const Training& training);
  // All members have promised so many steps, since the exchange began.
  void allowed(double now_s, std::uint64_t steps);
  // So many steps have arrived, since the exchange began.
  void received(double now_s, std::uint64_t steps);

 private:
  std::uint64_t fitting_bytes(double idle_s) const;

  // Steps that were allowed while no other was under way. Their time, until the last one arrives, goes into estimate_.
  struct Sample {
    double began_s;
    std::uint64_t first_step, end_step;
  };

  const std::uint64_t grain_bytes_, chunk_bytes_max_;
  const std::uint32_t buffers_;
  LinkEstimate estimate_;  // for chunks
  std::optional<Sample> sample_;
  std::uint64_t chunk_bytes_ = 1, longest_bytes_ = 0;
  std::uint64_t promised_ = 0, allowed_ = 0, received_ = 0;  // steps since the exchange began
};

}  // namespace ckpt::schedule
