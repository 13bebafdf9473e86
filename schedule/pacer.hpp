// Pacer decides whether a chunk may leave now and how large it may be, so that checkpoint traffic does not slow down
// training. It carries out Algorithm 2 of GEMINI (SOSP'23, section 5.3) while the iteration passes. A chunk leaves only
// if it will arrive before the usable part of the idle span ends. The chunk is cut to the size that fits. If training
// communicates when its profile predicts, each span carries the bytes that plan() (plan.hpp) places there. If training
// communicates earlier, the span carries fewer. No clock, no I/O. Not thread-safe.
//
// Starvation is bounded: waiting pieces get the link for at least a tenth of the time. The pacer counts how much of
// that tenth they did not get. The limit is the tenth of starvation_limit_s or of two iterations, whichever is longer.
// Above the limit, one chunk leaves even if training has to wait for it. This repeats as often as needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "schedule/idle_forecast.hpp"
#include "schedule/link_estimate.hpp"

namespace ckpt::schedule {

struct PacerOptions {
  std::uint64_t chunk_bytes = 2u << 20;   // no chunk is larger (R / p of GEMINI)
  std::uint64_t grain_bytes = 64u << 10;  // a chunk is a multiple of this, except a piece's last
  double chunk_s = 0.01;  // no chunk takes longer on the link, except one of grain_bytes. Training may wait that long
  double starvation_limit_s = 1;
};

class Pacer {
 public:
  // Throws std::invalid_argument unless chunk_bytes >= grain_bytes >= 1, and both times are above 0.
  explicit Pacer(const PacerOptions& options = {});

  // Asks for a waiting piece of which `left_bytes` > 0 are not sent, while `under_way` chunks are under way. Returns
  // how many bytes may leave now, at most. The caller must send a chunk of that size. 0: nothing may leave. Unless the
  // network is free, chunks leave one by one. So a communication of training that begins early meets at most one chunk.
  // `iteration_s`: how long an iteration of the slowest rank takes; 0: unknown.
  std::uint64_t allow(double now_s, std::uint64_t left_bytes, std::size_t under_way, const IdleForecast& idle_forecast,
                      double iteration_s);
  // Call this when a chunk has arrived that was under way alone. `time_s`: from sending until then. `undisturbed`: true
  // if training did not communicate meanwhile. Only then the chunk tells how fast the link is.
  void received(std::uint64_t size_bytes, double time_s, bool undisturbed);

  std::optional<LinkModel> link() const { return estimate_.link(); }  // none until enough chunks have arrived
  // The largest chunk that may leave: the bytes that cross the link in PacerOptions::chunk_s, rounded down to a
  // multiple of grain_bytes; at least grain_bytes and at most PacerOptions::chunk_bytes. It is grain_bytes until the
  // speed of the link is known.
  std::uint64_t chunk_bytes() const;
  std::uint64_t forced() const { return forced_; }  // how many chunks left although they fit into no idle span

 private:
  std::uint64_t fitting_bytes(std::uint64_t left_bytes, double idle_s) const;
  double link_s(std::uint64_t size_bytes) const;
  void note_waiting(double now_s, double starvation_limit_s);

  const PacerOptions options_;
  LinkEstimate estimate_;
  double asked_s_ = -1;      // when allow() was called last; -1: not since the network was free
  bool all_left_ = false;    // that call allowed all bytes of the piece
  double owed_s_ = 0;        // how much time on the link waiting pieces still have to get
  double forced_for_s_ = 0;  // expected time of the last forced chunk on the link; 0 once that chunk has arrived
  std::uint64_t forced_ = 0;
};

}  // namespace ckpt::schedule
