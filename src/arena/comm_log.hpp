// When a trainer communicates: its hooks write it to the rank's control file (CommWords), the agent reads it there.
//
// Two things for two uses. Per communication channel a pair of counters, which tells whether the channel is busy at
// this moment; and a ring of events with times, from which the agent learns the pattern of an iteration. A slow reader
// loses events and is told so; a writer waits for nobody. Communications that a GPU begins and ends by itself have a
// pair of words each, which it writes, and come into the ring a little later (engine/gpu_comm.hpp).
#pragma once

#include <cstdint>
#include <vector>

#include "arena/arena_format.hpp"
#include "base/clock.hpp"
#include "schedule/idle_forecast.hpp"

namespace ckpt::arena {

enum class CommKind : std::uint8_t { begin = 1, end = 2, iteration = 3 };

struct CommEvent {
  std::int64_t at_us = 0;  // on CLOCK_MONOTONIC
  CommKind kind = CommKind::begin;
  std::uint8_t channel = 0;
  bool operator==(const CommEvent&) const = default;
};

// As schedule/ learns from them. A writer's clock is the reader's: a time to come is nonsense, and is `now`.
schedule::Mark mark_of(const CommEvent& event, Clock::time_point now);

// Trainer's. Any thread, without locks, system calls and allocations. Channels are below comm_channels_max. A thread
// that is halted within a call holds up what the agent can read until the ring has gone round, and nothing else.
class CommWriter {
 public:
  explicit CommWriter(CommWords& words) : words_(&words) {}

  void begin(std::uint32_t channel, Clock::time_point now);
  // False, and nothing is written, where all that has begun on this channel has ended.
  bool end(std::uint32_t channel, Clock::time_point now);
  // An iteration ends, and the next begins.
  void iteration(Clock::time_point now);
  // What was a while ago on a GPU's timeline, whose gate the GPU turns itself.
  void happened(CommKind kind, std::uint32_t channel, Clock::time_point at) { store(kind, channel, at); }

 private:
  void store(CommKind kind, std::uint32_t channel, Clock::time_point now);

  CommWords* words_;
};

// Agent's. is_busy() and begun_total() are for any thread, read() for one at a time. Whatever the words hold, read()
// ends, with at most comm_events_max events. Events of several threads come in the order in which they were counted,
// which may differ a little from that of their times.
class CommReader {
 public:
  // Reads what is written from now on.
  explicit CommReader(const CommWords& words);

  // Appends what was written since the last call. An event that a writer has counted but not stored yet is left, with
  // those behind it, for the next call. False when events were lost, because the ring went round or holds nonsense:
  // reading goes on with what is written from now on.
  bool read(std::vector<CommEvent>& to);

  // Any channel, and any communication on a GPU. False only if all were idle, each at one moment of the call.
  bool is_busy() const;
  // Another number after every begin.
  std::uint64_t begun_total() const;

 private:
  const CommWords* words_;
  std::uint64_t next_;  // event
};

}  // namespace ckpt::arena
