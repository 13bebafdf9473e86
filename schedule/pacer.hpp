// How large a chunk may leave now: Algorithm 2 of GEMINI (SOSP'23, section 5.3) carried out while the iteration passes.
// A chunk leaves only if it will be through before the idle span's usable part ends, and is cut to what fits; so what
// is sent in a span is what plan() places there, as long as spans are as learned, and less where training is early.
// Pure.
//
// Starvation is bounded: what waits gets a tenth of the link. Where less than that has left for starvation_limit_s and
// for two iterations, chunks leave all the same, in training's way, for a tenth of the time. While a profile is learned
// in quiet nothing does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "schedule/idle_forecast.hpp"
#include "schedule/link_estimate.hpp"

namespace ckpt::schedule {

struct PacerOptions {
  std::uint64_t chunk_bytes = 2u << 20;   // R / p: no chunk is larger
  std::uint64_t grain_bytes = 64u << 10;  // chunks are cut at multiples of it, but for a piece's last one
  double chunk_s = 0.01;  // nor takes longer on the link, but for one grain: so long may training have to wait
  double starvation_limit_s = 1;
};

class Pacer {
 public:
  // Throws std::invalid_argument unless a chunk has at least one grain, a grain one byte, and times are above 0.
  explicit Pacer(const PacerOptions& options = {});

  // A piece of which `left_bytes` > 0 are left waits, while `under_way` chunks are. Returns the most that may leave
  // now, which then does; 0: nothing. But where the network is free chunks leave one by one: a communication of
  // training that begins early finds one on its way at most. `iteration_s`: of the slowest rank; 0 where unknown.
  std::uint64_t allow(double now_s, std::uint64_t left_bytes, std::size_t under_way, const IdleForecast& idle_forecast,
                      double iteration_s);
  // A chunk that was under way alone; `undisturbed`: training did not communicate meanwhile, so that it tells of the
  // link.
  void received(std::uint64_t size_bytes, double time_s, bool undisturbed);

  std::optional<LinkModel> link() const { return estimate_.link(); }
  // As much as crosses the link in chunk_s, within limits. Before the link is known, chunks are small.
  std::uint64_t chunk_bytes() const;
  std::uint64_t forced() const { return forced_; }  // chunks that left although they did not fit

 private:
  std::uint64_t fitting_bytes(std::uint64_t left_bytes, double idle_s) const;
  double link_s(std::uint64_t size_bytes) const;
  void note_waiting(double now_s, double starvation_limit_s);

  const PacerOptions options_;
  LinkEstimate estimate_;
  double asked_s_ = -1;      // when allow() was asked last
  bool all_left_ = false;    // and allowed all there was
  double owed_s_ = 0;        // time on the link that what waits has been denied
  double forced_for_s_ = 0;  // what the chunk that was forced last is to take; 0 once it has arrived
  std::uint64_t forced_ = 0;
};

}  // namespace ckpt::schedule
