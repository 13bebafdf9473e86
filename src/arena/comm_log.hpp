// CommWriter and CommReader tell the agent when a trainer communicates, so that replication can wait until the network
// is idle. The trainer's communication hooks write, and the agent reads. The data are in the rank's control file
// (CommWords). A writer never waits.
//
// The data have two parts. Two counters for each channel tell whether the channel is busy now. A ring of events with
// times shows the pattern of an iteration. A reader that is too slow loses events; read() tells when this happens.
//
// For communications on a GPU's streams, the GPU itself writes separate counters. The events of these communications
// enter the ring a little later (client/gpu_comm.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arena/arena_format.hpp"
#include "base/clock.hpp"
#include "schedule/device_profile.hpp"
#include "schedule/idle_forecast.hpp"

namespace ckpt::arena {

// begin, end: of a communication. iteration: snapshot() was called. bubble_begin, bubble_end: training begins and ends
// to wait for other ranks. update: before_update() was called. copy: state began to be copied without a pause (channel
// 0), or no longer was (channel 1). With a GPU, the first six happen when the GPU gets there.
enum class CommKind : std::uint8_t {
  begin = 1,
  end = 2,
  iteration = 3,
  bubble_begin = 4,
  bubble_end = 5,
  update = 6,
  copy = 7
};

struct CommEvent {
  std::int64_t at_us = 0;  // on CLOCK_MONOTONIC
  CommKind kind = CommKind::begin;
  std::uint8_t channel = 0;
  bool operator==(const CommEvent&) const = default;
};

// Converts an event to a mark for schedule/: mark_of() to one that says what training does with the network,
// device_mark_of() to one that says what its device does. Nothing if the event does not say that. A time later than
// `now` is invalid, because writer and reader share a clock, and is replaced by `now`.
std::optional<schedule::Mark> mark_of(const CommEvent& event, Clock::time_point now);
std::optional<schedule::DeviceMark> device_mark_of(const CommEvent& event, Clock::time_point now);

// The trainer's side. Any thread may use it. It takes no lock, makes no system call and allocates nothing. Channels
// must be below comm_channels_max. If a thread is stopped within a call, the agent cannot read later events for a
// while. After comm_events_max later events, it counts the event of that call as lost and reads on. Nobody but the
// agent waits for the stopped thread.
class CommWriter {
 public:
  explicit CommWriter(CommWords& words) : words_(&words) {}

  void begin(std::uint32_t channel, Clock::time_point now);
  // Returns false and writes nothing if no communication is under way on this channel.
  bool end(std::uint32_t channel, Clock::time_point now);
  // pause() and resume() begin and end a pause of training. Pauses may be nested. Only one thread at a time may call
  // these two functions.
  void pause(std::string_view name);
  // Returns false and writes nothing if training does not pause.
  bool resume();
  // Records which iteration the next call of iteration() ends.
  void offered(std::int64_t iteration) {
    words_->offered.store(static_cast<std::uint64_t>(iteration) + 1, std::memory_order_release);
  }
  // Records that an iteration ends and the next begins.
  void iteration(Clock::time_point now);
  // Record that a bubble begins or ends, and that the update begins.
  void bubble_begin(Clock::time_point now) { store(CommKind::bubble_begin, 0, now); }
  void bubble_end(Clock::time_point now) { store(CommKind::bubble_end, 0, now); }
  void update(Clock::time_point now) { store(CommKind::update, 0, now); }
  // Records that state was copied in this time.
  void copied(Clock::time_point begin, Clock::time_point end) {
    store(CommKind::copy, 0, begin);
    store(CommKind::copy, 1, end);
  }
  // Adds to the ring an earlier event of a communication on a GPU's stream. Does not count it as begun or ended: the
  // GPU itself has done so.
  void happened(CommKind kind, std::uint32_t channel, Clock::time_point at) { store(kind, channel, at); }

 private:
  void store(CommKind kind, std::uint32_t channel, Clock::time_point now);

  CommWords* words_;
};

// The agent's side. Only one thread at a time may call read(); any thread may call the other functions. Each read()
// ends after at most comm_events_max events, whatever the trainer wrote. Events of different threads come in the order
// in which they were counted, which may differ a little from the order of their times.
class CommReader {
 public:
  // Reads only events that are written from now on.
  explicit CommReader(const CommWords& words);

  // Appends the events since the last call to `to`. If an event is counted but not stored yet, this event and all later
  // ones are left for the next call. Returns false if events were lost: newer ones have replaced them in the ring, or
  // the ring has invalid words. The next call then begins with new events.
  bool read(std::vector<CommEvent>& to);

  // True if a communication is under way, on a channel or on the GPU. False only if each channel and the GPU were idle
  // at some moment during the call.
  bool is_busy() const;
  // The last iteration offered to snapshot(); -1: none. Do not trust it: a trainer may write anything.
  std::int64_t offered() const {
    return static_cast<std::int64_t>(words_->offered.load(std::memory_order_acquire)) - 1;
  }
  // The name of the newest pause, with '?' for characters that cannot be printed. Nothing if training does not pause.
  std::optional<std::string> paused() const;
  // A number that changes whenever a communication begins.
  std::uint64_t begun_total() const;

 private:
  const CommWords* words_;
  std::uint64_t next_;  // number of the next event to read
};

}  // namespace ckpt::arena
