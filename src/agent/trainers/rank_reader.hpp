// RankReader reads the ranks of this node from outside their processes: the marks of their hooks, their pauses, and the
// state of their processes. Its core::RankWatch judges what was read. RankReader only reads: it ends no process.
//
// It needs no help from the trainer, so it also sees ranks that are stopped or hold Python's interpreter lock. Only the
// core thread uses it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/process.hpp"
#include "arena/comm_log.hpp"
#include "arena/control.hpp"
#include "core/rank_watch.hpp"

namespace ckpt::agent {

class RankReader {
 public:
  explicit RankReader(const core::RankWatch::Limits& limits) : watch_(limits) {}

  // Each tells the core::RankWatch what happened to a rank. add(): it has a new trainer. joined(): it begins to restore
  // (incarnation 0) or has restored. interrupted(): it gets larger slots. remove(): its engine was closed. died(): its
  // process ended without closing the engine.
  void add(core::Rank rank, std::int64_t pid, std::shared_ptr<const arena::Control> control, std::uint64_t incarnation);
  void joined(core::Rank rank, std::uint64_t incarnation) { watch_.joined(rank, incarnation); }
  void interrupted(core::Rank rank, Clock::time_point now);
  void remove(core::Rank rank);
  void died(core::Rank rank, Clock::time_point now);

  // Reads every rank, and judges it. Returns what the core should be told, or nothing. Call it every
  // RankWatch::Limits::look_every_s.
  std::optional<core::RanksWatched> look(Clock::time_point now);

  // For `ckptctl status`: the name of the rank's pause, if it is paused.
  std::optional<std::string> paused(core::Rank rank) const;

 private:
  struct Source {
    Source(std::shared_ptr<const arena::Control> page, std::int64_t pid)
        : control(std::move(page)), process(Process::open(static_cast<pid_t>(pid))), log(control->comm()) {}
    std::shared_ptr<const arena::Control> control;
    std::optional<Process> process;
    arena::CommReader log;
  };
  void read(core::Rank rank, Clock::time_point now);

  core::RankWatch watch_;
  std::map<core::Rank, Source> sources_;
  core::RankWatch::Reading seen_;  // these two are kept to reuse their memory
  std::vector<arena::CommEvent> events_;
};

}  // namespace ckpt::agent
