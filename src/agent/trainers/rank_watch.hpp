// RankWatch watches this node's ranks from outside their processes: the marks of their hooks, their pauses, and the
// state of their processes. It says which ranks are in trouble. It ends nothing.
//
// It needs no thread of a trainer, so it also sees ranks that are stopped or hold Python's interpreter lock. Belongs to
// the core thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/process.hpp"
#include "arena/comm_log.hpp"
#include "arena/control.hpp"
#include "core/events.hpp"
#include "schedule/deadline.hpp"

namespace ckpt::agent {

class RankWatch {
 public:
  struct Limits {
    schedule::DeadlineOptions deadline;
    std::int64_t look_every_ms = 125;
  };
  explicit RankWatch(const Limits& limits) : limits_(limits) {}

  // The rank has a new trainer. `incarnation` is 0 if it has not restored yet.
  void add(core::Rank rank, std::int64_t pid, std::shared_ptr<const arena::Control> control, std::uint64_t incarnation);
  // It restores (incarnation 0), or has the state of this incarnation. What was learned is forgotten.
  void joined(core::Rank rank, std::uint64_t incarnation);
  // It does something else than training until its next iteration: it gets larger slots.
  void interrupted(core::Rank rank, Clock::time_point now);
  // Its engine was closed. It is watched no more.
  void remove(core::Rank rank) { ranks_.erase(rank); }
  // Its process ended without that. It stays in trouble until the rank has a new trainer.
  void died(core::Rank rank, Clock::time_point now);

  // Looks at every rank. Returns the news if the core should get it. Call it every look_every_ms. After a much longer
  // time this agent was stopped itself, so every rank gets its whole time again.
  std::optional<core::RanksWatched> look(Clock::time_point now);

  // For `ckptctl status`: the name of the rank's pause, if it is paused.
  std::optional<std::string> paused(core::Rank rank) const;

 private:
  struct Watched {
    Watched(std::shared_ptr<const arena::Control> page, std::int64_t pid, const schedule::DeadlineOptions& options)
        : control(std::move(page)),
          process(Process::open(static_cast<pid_t>(pid))),
          log(control->comm()),
          deadline(options) {}
    std::shared_ptr<const arena::Control> control;
    std::optional<Process> process;
    arena::CommReader log;
    schedule::LearnedDeadline deadline;
    std::uint64_t incarnation = 0;
    std::optional<Clock::time_point> stopped_since, died_at;
    std::uint32_t computing_ms = 0;  // as the core knows it; 0: not known
  };
  void listen(Watched& watched, Clock::time_point now);
  std::optional<core::RankStanding> judge(core::Rank rank, Watched& watched, Clock::time_point now) const;
  bool is_news(const core::RanksWatched& seen) const;

  const Limits limits_;
  std::map<core::Rank, Watched> ranks_;
  std::optional<Clock::time_point> looked_at_;
  core::RanksWatched notified_;           // what the core knows
  std::vector<arena::CommEvent> events_;  // kept to reuse its memory
};

}  // namespace ckpt::agent
