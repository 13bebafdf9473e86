// StepPacer keeps GPU replication from slowing down training. An exchange goes in steps: in a step, every rank of the
// replication group sends one chunk to every other rank (gpu_replication/exchange.hpp). A rank promises a step when it
// announces to the others that it will issue this step. No rank issues a step that not all ranks have promised.
// StepPacer decides for one rank how many steps the rank promises, and how large the chunks are, so that the promised
// steps end before training communicates again. This is Algorithm 2 of GEMINI (SOSP'23, section 5.3). StepPacer learns
// from earlier steps how long a step takes. It has no clock: callers pass times in, in seconds of any one clock. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "schedule/idle_forecast.hpp"
#include "schedule/link_estimate.hpp"

namespace ckpt::schedule {

// When this rank's training leaves the network idle.
struct Training {
  IdleForecast idle_forecast;
  // Length of the longest idle span in an iteration; infinite if unknown.
  double longest_idle_s = std::numeric_limits<double>::infinity();
};

class StepPacer {
 public:
  // A chunk's size is a multiple of `grain_bytes` and at most `chunk_bytes_max`. `buffers`: how many steps may be under
  // way at once.
  StepPacer(std::uint64_t grain_bytes, std::uint64_t chunk_bytes_max, std::uint32_t buffers)
      : grain_bytes_(grain_bytes), chunk_bytes_max_(chunk_bytes_max), buffers_(buffers) {}

  // The size of chunks for the next exchange. It is the largest multiple of `grain_bytes` with which `buffers` steps
  // take no longer than the longest idle span, and at least `grain_bytes`. Until the time of a step is known, it is
  // `chunk_bytes_max`.
  std::uint64_t chunk_bytes(const Training& training) const;
  // Call this when an exchange begins. `chunk_bytes`: the size of its chunks. `longest_bytes`: the size of the longest
  // piece that any rank sends. All steps of the exchange before must have ended.
  void begin(std::uint64_t chunk_bytes, std::uint64_t longest_bytes);
  // Returns how many steps of this exchange the rank promises now, counted from the first one. The number never falls.
  // `ready`: for how many steps this rank's chunks are in the sub-buffers on the GPU. The first step is promised as
  // soon as the network is idle, even if it does not seem to fit: otherwise the estimate of a step's time would never
  // be renewed.
  std::uint64_t promise(std::uint64_t ready, const Training& training);
  // Call this when all ranks have promised the first `steps` steps.
  void allowed(double now_s, std::uint64_t steps);
  // Call this when the chunks of the first `steps` steps have arrived.
  void received(double now_s, std::uint64_t steps);

 private:
  std::uint64_t fitting_bytes(double idle_s) const;

  // The steps whose time goes into estimate_: from when they were allowed, with no other step under way, until the last
  // of them has arrived.
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
