// RankWatch judges which ranks of one node are in trouble. Its caller reads the ranks and passes in what it read: the
// marks of their communication hooks, their pauses, and the states of their processes. Pure: the caller also passes in
// the time, in seconds of the clock that the marks have. All calls come from one thread.
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
  // What the caller read of a rank since its last call of see().
  struct Reading {
    std::vector<schedule::Mark> marks;
    bool lost_marks = false;  // true: marks after these were lost
    bool is_paused = false;
    char process = 0;             // state of its main thread, as in /proc/PID/stat; 0: not known
    std::int64_t iteration = -1;  // the last one that it offered to snapshot(); -1: none
  };

  explicit RankWatch(const Limits& limits) : limits_(limits) {}

  // The rank has a new trainer. `incarnation` is 0 if it has not restored yet.
  void add(Rank rank, std::uint64_t incarnation);
  // The rank has begun to restore (incarnation 0), or has restored its state in this incarnation. Forgets what was
  // learned of the rank's deadlines.
  void joined(Rank rank, std::uint64_t incarnation);
  // The rank gets larger slots, so it does not train for a while. No deadline applies until its next iteration.
  void interrupted(Rank rank, double now_s);
  // The rank's engine was closed. From now on the rank is not watched.
  void remove(Rank rank) { ranks_.erase(rank); }
  // The rank's process ended without closing its engine. The rank stays in trouble until it has a new trainer.
  void died(Rank rank, double now_s);

  // Takes what the caller read of a living rank. Does nothing if the rank is not watched.
  void see(Rank rank, const Reading& seen, double now_s);

  // Judges all ranks. Returns the verdicts if they are news for the core, otherwise nothing. Call it every
  // look_every_s, after see() for each living rank. If the last call was much longer ago, the caller's own process was
  // stopped. Then every rank's deadline starts again.
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
