// How many steps of an exchange (exchange.hpp) a member promises, and how large their chunks are to be, so that they
// are through before training communicates again: Algorithm 2 of GEMINI (SOSP'23, section 5.3) for chunks that all
// members issue together. What steps take is learned from those that went, training's own communication beside them
// included. Pure: times are handed in, in seconds of any one clock.
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
  double longest_idle_s = std::numeric_limits<double>::infinity();  // in an iteration; infinite while it is unknown
};

class StepPacer {
 public:
  // Chunks are multiples of a grain. `buffers`: steps that may be under way.
  StepPacer(std::uint64_t grain_bytes, std::uint64_t chunk_bytes_max, std::uint32_t buffers)
      : grain_bytes_(grain_bytes), chunk_bytes_max_(chunk_bytes_max), buffers_(buffers) {}

  // Of the next exchange: so that all that may be under way fits into the longest idle span, or a grain.
  std::uint64_t chunk_bytes(const Training& training) const;
  // An exchange begins, of pieces of which the longest has `longest_bytes`; nothing of the one before is under way.
  void begin(std::uint64_t chunk_bytes, std::uint64_t longest_bytes);
  // `ready` steps lie in sub-buffers; returns how many are promised, which never falls. The first one of an exchange
  // goes in any idle moment: so what steps take stays known, also where none seems to fit.
  std::uint64_t promise(std::uint64_t ready, const Training& training);
  // All members have promised so many; so many have arrived.
  void allowed(double now_s, std::uint64_t steps);
  void received(double now_s, std::uint64_t steps);

 private:
  std::uint64_t fitting_bytes(double idle_s) const;

  // Steps that left when none was under way, until the last of them has arrived.
  struct Sample {
    double began_s;
    std::uint64_t first_step, end_step;
  };

  const std::uint64_t grain_bytes_, chunk_bytes_max_;
  const std::uint32_t buffers_;
  LinkEstimate estimate_;  // of chunks, for a step moves one of each member
  std::optional<Sample> sample_;
  std::uint64_t chunk_bytes_ = 1, longest_bytes_ = 0;
  std::uint64_t promised_ = 0, allowed_ = 0, received_ = 0;  // steps
};

}  // namespace ckpt::schedule
