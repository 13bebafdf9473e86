// Pacer decides whether a chunk may leave now and how large it may be, so that checkpoint traffic does not slow down
// training. It carries out Algorithm 2 of GEMINI (SOSP'23, section 5.3) while the iteration passes. A chunk leaves only
// if it will arrive before the usable part of the idle span ends. It is cut to the size that fits. If training
// communicates when its profile predicts, each span carries the bytes that plan() places there. If training
// communicates earlier, the span carries fewer. No clock, no I/O.
//
// Starvation is bounded: pieces that wait get the link for at least a tenth of the time. The pacer counts how much of
// that tenth they did not get. Once they got nothing of it for starvation_limit_s and for two iterations, one chunk
// leaves even if training has to wait for it. More follow until they have their tenth. No such chunk leaves while a
// profile is learned: the pacer learns from iterations without checkpoint traffic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "schedule/idle_forecast.hpp"
#include "schedule/link_estimate.hpp"

namespace ckpt::schedule {

struct PacerOptions {
  std::uint64_t chunk_bytes = 2u << 20;   // R / p: no chunk is larger
  std::uint64_t grain_bytes = 64u << 10;  // chunks are cut at multiples of this, except a piece's last one
  double chunk_s = 0.01;  // nor takes longer on the link, except one grain: training may have to wait that long
  double starvation_limit_s = 1;
};

class Pacer {
 public:
  // Throws std::invalid_argument unless a chunk has at least one grain, a grain at least one byte, and times are above
  // 0.
  explicit Pacer(const PacerOptions& options = {});

  // Asks for a waiting piece that has `left_bytes` > 0 left, while `under_way` chunks are under way. Returns the most
  // bytes that may leave now, and the caller sends them; 0: none. Unless the network is free, chunks leave one by one,
  // so a communication of training that begins early meets at most one. `iteration_s`: the slowest rank's; 0 if
  // unknown.
  std::uint64_t allow(double now_s, std::uint64_t left_bytes, std::size_t under_way, const IdleForecast& idle_forecast,
                      double iteration_s);
  // A chunk that was under way alone has arrived. `undisturbed`: training did not communicate meanwhile, so the chunk
  // measures the link.
  void received(std::uint64_t size_bytes, double time_s, bool undisturbed);

  std::optional<LinkModel> link() const { return estimate_.link(); }
  // As much as crosses the link in chunk_s, within limits. Small until the link is known.
  std::uint64_t chunk_bytes() const;
  std::uint64_t forced() const { return forced_; }  // chunks that left although they did not fit

 private:
  std::uint64_t fitting_bytes(std::uint64_t left_bytes, double idle_s) const;
  double link_s(std::uint64_t size_bytes) const;
  void note_waiting(double now_s, double starvation_limit_s);

  const PacerOptions options_;
  LinkEstimate estimate_;
  double asked_s_ = -1;      // when allow() was asked last
  bool all_left_ = false;    // and it allowed all that there was
  double owed_s_ = 0;        // time on the link that waiting pieces have been denied
  double forced_for_s_ = 0;  // expected time of the last forced chunk; 0 once it has arrived
  std::uint64_t forced_ = 0;
};

}  // namespace ckpt::schedule
