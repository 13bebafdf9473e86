// Pacer decides whether a chunk may leave now and how large it may be, so that checkpoint traffic does not slow down
// training. It is an online form of Algorithm 2 of GEMINI (SOSP'23, section 5.3). A chunk leaves only if it will arrive
// before the usable part of the idle span ends. The chunk is cut to the size that fits. If training communicates when
// its profile predicts, each span carries the bytes that plan() (plan.hpp) places there. If training communicates
// earlier, the span carries fewer. No clock, no I/O. Not thread-safe.
//
// Waiting pieces get the link for at least a tenth of the time, even if training leaves no idle span. The pacer adds up
// the time that they are owed: a tenth of the time that they wait, less the time that they got. If they are owed more
// than a tenth of starvation_limit_s, and more than a tenth of two iterations, one chunk leaves even if training has to
// wait for it. This repeats as often as needed.
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
  double chunk_s = 0.01;  // most time of a chunk on the link: training may have to wait for it. A chunk of grain_bytes
                          // may take longer
  double starvation_limit_s = 1;
};

class Pacer {
 public:
  // Throws std::invalid_argument unless chunk_bytes >= grain_bytes >= 1, and both times are above 0.
  explicit Pacer(const PacerOptions& options = {});

  // Asks whether a chunk of a waiting piece may leave now. `left_bytes` > 0: how much of the piece is not sent yet.
  // `under_way`: how many chunks are under way. Returns the size of the chunk, which the caller must then send, or 0 if
  // nothing may leave. Unless the network is free, chunks leave one by one. So a communication of training that begins
  // early meets at most one chunk. `iteration_s`: how long an iteration of the slowest rank takes; 0: unknown.
  std::uint64_t allow(double now_s, std::uint64_t left_bytes, std::size_t under_way, const IdleForecast& idle_forecast,
                      double iteration_s);
  // Call this when a chunk has arrived that was under way alone. `time_s`: from sending until then. `undisturbed`: true
  // if training did not communicate meanwhile. Only undisturbed chunks show how fast the link is.
  void received(std::uint64_t size_bytes, double time_s, bool undisturbed);

  std::optional<LinkModel> link() const { return estimate_.link(); }  // none until enough chunks have arrived
  // The largest chunk that may leave: the bytes that cross the link in PacerOptions::chunk_s, rounded down to a
  // multiple of grain_bytes; at least grain_bytes and at most PacerOptions::chunk_bytes. It is grain_bytes until the
  // speed of the link is known.
  std::uint64_t chunk_bytes() const;
  std::uint64_t forced() const { return forced_; }  // how many chunks left although they fitted into no idle span

 private:
  std::uint64_t fitting_bytes(std::uint64_t left_bytes, double idle_s) const;
  double link_s(std::uint64_t size_bytes) const;
  void note_waiting(double now_s, double starvation_limit_s);

  const PacerOptions options_;
  LinkEstimate estimate_;
  double asked_s_ = -1;      // time of the last call of allow(); -1: none since the network was free
  bool all_left_ = false;    // the last call of allow() allowed all bytes of the piece
  double owed_s_ = 0;        // how much time on the link waiting pieces still have to get
  double forced_for_s_ = 0;  // expected time of the last forced chunk on the link; 0 once that chunk has arrived
  std::uint64_t forced_ = 0;
};

}  // namespace ckpt::schedule
