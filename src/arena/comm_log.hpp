// CommWriter and CommReader tell the agent when a trainer communicates, so that copying can wait until the network is
// idle. The trainer's hooks write, and the agent reads. The data lie in the rank's control file (CommWords). A writer
// never waits.
//
// The data have two parts. A pair of counters per channel tells whether the channel is busy now. A ring of events with
// times shows the pattern of an iteration. A reader that is too slow loses events, and read() says so.
//
// A GPU writes counters of its own for the communications on its streams. The events of these communications enter the
// ring a little later (client/gpu_comm.hpp).
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

// The trainer's side; any thread may use it. It takes no lock, makes no system call and allocates nothing. Channels are
// below comm_channels_max. If a thread is halted within a call, the agent reads no later events until the ring has gone
// round. Nothing else waits for that thread.
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
  // Tells which iteration ends with the next call of iteration().
  void offered(std::int64_t iteration) {
    words_->offered.store(static_cast<std::uint64_t>(iteration) + 1, std::memory_order_release);
  }
  // Records that an iteration ends and the next begins.
  void iteration(Clock::time_point now);
  // Records an earlier event on a GPU's timeline. The GPU itself drives the gate for it.
  void happened(CommKind kind, std::uint32_t channel, Clock::time_point at) { store(kind, channel, at); }

 private:
  void store(CommKind kind, std::uint32_t channel, Clock::time_point now);

  CommWords* words_;
};

// The agent's side. Any thread may call is_busy() and begun_total(); only one thread at a time may call read(). Each
// read() ends after at most comm_events_max events, whatever the trainer wrote. Events of different threads come in the
// order in which they were counted, which may differ a little from the order of their times.
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
  // The last iteration offered to snapshot(); -1: none. Do not trust it: a trainer may write anything.
  std::int64_t offered() const {
    return static_cast<std::int64_t>(words_->offered.load(std::memory_order_acquire)) - 1;
  }
  // The name of the newest pause, if any has not ended. Unprintable characters read as '?'.
  std::optional<std::string> paused() const;
  // This number changes with every begin.
  std::uint64_t begun_total() const;

 private:
  const CommWords* words_;
  std::uint64_t next_;  // event
};

}  // namespace ckpt::arena
