// Records when a trainer communicates. The trainer's hooks write to the rank's control file (CommWords), and the agent
// reads it there.
//
// It has two parts. A pair of counters per communication channel tells whether the channel is busy at this moment. A
// ring of events with times tells the agent the pattern of an iteration. A slow reader loses events and learns that it
// did. A writer waits for nobody. The GPU writes a pair of words of its own for each communication that it begins and
// ends. The events of such communications enter the ring a little later (client/gpu_comm.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// Converts an event to a mark for schedule/. Writer and reader share a clock, so a time in the future is invalid and
// becomes `now`.
schedule::Mark mark_of(const CommEvent& event, Clock::time_point now);

// For the trainer, from any thread. Takes no lock, makes no system call and allocates nothing. Channels are below
// comm_channels_max. If a thread is halted within a call, the agent cannot read on until the ring has gone round.
// Nothing else waits for it.
class CommWriter {
 public:
  explicit CommWriter(CommWords& words) : words_(&words) {}

  void begin(std::uint32_t channel, Clock::time_point now);
  // Returns false and writes nothing if everything that has begun on this channel has ended.
  bool end(std::uint32_t channel, Clock::time_point now);
  // Training does something that is no iteration. Pauses may be nested. One thread at a time.
  void pause(std::string_view name);
  // Returns false and writes nothing if every pause has ended.
  bool resume();
  // Records that an iteration ends and the next begins.
  void iteration(Clock::time_point now);
  // Records an earlier event on a GPU's timeline. The GPU itself drives the gate for it.
  void happened(CommKind kind, std::uint32_t channel, Clock::time_point at) { store(kind, channel, at); }

 private:
  void store(CommKind kind, std::uint32_t channel, Clock::time_point now);

  CommWords* words_;
};

// For the agent. Any thread may call is_busy() and begun_total(), but only one at a time read(). read() always ends,
// with at most comm_events_max events, whatever the words hold. Events of several threads come in the order in which
// they were counted. That may differ a little from the order of their times.
class CommReader {
 public:
  // Reads only events that are written from now on.
  explicit CommReader(const CommWords& words);

  // Appends the events since the last call. An event that is counted but not stored yet stays for the next call, and so
  // do all after it. Returns false if events were lost, because the ring went round or holds invalid words. Reading
  // then continues with new events.
  bool read(std::vector<CommEvent>& to);

  // True if any channel, or any communication on a GPU, is busy. False only if each of them was idle at some moment of
  // the call.
  bool is_busy() const;
  // The name of the newest pause, if any has not ended. Unprintable characters read as '?'.
  std::optional<std::string> paused() const;
  // This number changes with every begin.
  std::uint64_t begun_total() const;

 private:
  const CommWords* words_;
  std::uint64_t next_;  // event
};

}  // namespace ckpt::arena
