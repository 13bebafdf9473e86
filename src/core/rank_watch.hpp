// RankWatch judges whether one node's ranks make progress, from what its driver has read of them: the marks of their
// hooks, their pauses, and the states of their processes. It says which ranks are in trouble. Pure: callers pass times
// in, in seconds of the clock that the marks have. All calls come from one thread.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/events.hpp"
#include "schedule/deadline.hpp"

namespace ckpt::core {

class RankWatch {
 public:
  struct Limits {
    schedule::DeadlineOptions deadline;
    double look_every_s = 0.125;
  };
  // What was read of a rank since the last time.
  struct Reading {
    std::vector<schedule::Mark> marks;
    bool lost_marks = false;  // after these
    bool is_paused = false;
    char process = 0;             // state of its main thread, as in /proc/PID/stat; 0: not known
    std::int64_t iteration = -1;  // the last one that it offered to snapshot(); -1: none
  };

  explicit RankWatch(const Limits& limits) : limits_(limits) {}

  // The rank has a new trainer. `incarnation` is 0 if it has not restored yet.
  void add(Rank rank, std::uint64_t incarnation);
  // It restores (incarnation 0), or has the state of this incarnation. What was learned is forgotten.
  void joined(Rank rank, std::uint64_t incarnation);
  // It does something else than training until its next iteration: it gets larger slots.
  void interrupted(Rank rank, double now_s);
  // Its engine was closed. It is watched no more.
  void remove(Rank rank) { ranks_.erase(rank); }
  // Its process ended without that. It stays in trouble until the rank has a new trainer.
  void died(Rank rank, double now_s);

  // What was read of a living rank. Does nothing if it is not watched.
  void see(Rank rank, const Reading& seen, double now_s);

  // Judges all ranks. Returns the news if the core should get it. Call it every look_every_s, after see() for each
  // rank that lives. After a much longer time this driver was stopped itself, so every rank gets its whole time again.
  std::optional<RanksWatched> look(double now_s);

 private:
  struct Watched {
    schedule::LearnedDeadline deadline;
    std::uint64_t incarnation = 0;
    char process = 0;
    std::int64_t iteration = -1;
    std::optional<double> stopped_since_s, died_at_s;
    std::uint32_t computing_ms = 0;  // as the core knows it; 0: not known
  };
  Watched* find(Rank rank);
  std::optional<RankStanding> judge(Rank rank, const Watched& watched, double now_s) const;
  bool is_news(const RanksWatched& seen) const;

  const Limits limits_;
  std::map<Rank, Watched> ranks_;
  std::optional<double> looked_at_s_;
  RanksWatched notified_;  // what the core knows
};

}  // namespace ckpt::core
