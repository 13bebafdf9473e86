// TrainingWatch tells GPU replication whether training communicates now, and how long the network will then stay idle.
// It learns that from the rank's own communication log (arena/comm_log.hpp). One thread at a time uses it. That thread
// must call look() before arena::comm_events_max new events have come, or events are lost. For copies from host to
// host, the agent learns the same from the same log.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "arena/comm_log.hpp"
#include "arena/control.hpp"
#include "schedule/idle_forecast.hpp"
#include "schedule/step_pacer.hpp"

namespace ckpt::client {

class TrainingWatch {
 public:
  TrainingWatch(std::shared_ptr<const arena::Control> control, std::uint32_t profile_iterations)
      : control_(std::move(control)), log_(control_->comm()), idle_forecast_(options_of(profile_iterations)) {}

  schedule::Training look(Clock::time_point now) {
    events_.clear();
    if (!log_.read(events_)) idle_forecast_.lost_marks(seconds_of(now));
    for (const arena::CommEvent& event : events_)
      if (const auto mark = arena::mark_of(event, now)) idle_forecast_.observe(*mark);
    return {idle_forecast_.idle_forecast(seconds_of(now), log_.is_busy()), idle_forecast_.longest_idle_s()};
  }

 private:
  static schedule::IdleForecastOptions options_of(std::uint32_t profile_iterations) {
    schedule::IdleForecastOptions options;
    options.profiler.iterations = profile_iterations;
    return options;
  }

  const std::shared_ptr<const arena::Control> control_;
  arena::CommReader log_;
  schedule::RankIdleForecast idle_forecast_;
  std::vector<arena::CommEvent> events_;  // kept to reuse its memory
};

}  // namespace ckpt::client
