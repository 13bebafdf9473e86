// HealthReporter tells others whether the job is protected, which ranks are suspected to hold training up, and how far
// a halt is. It tells the protocol's core what this agent observes, and tells the trainers and the log what the core
// concludes. It also makes the answer to `ckptctl health`. Only the agent's core thread uses it.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "agent/event_log.hpp"
#include "agent/member_watch.hpp"
#include "agent/peers.hpp"
#include "agent/trainers/trainer_manager.hpp"
#include "core/node.hpp"
#include "options/options.hpp"

namespace ckpt::agent {

class HealthReporter {
 public:
  // What the reporter uses. All of it outlives the reporter.
  struct Dependencies {
    const Options& options;
    const core::Node& core;
    EventSink& events;
    const Peers& peers;
    MemberWatch& members;
    TrainerManager& trainers;
    EventLog& event_log;
    const Log& log;
  };
  explicit HealthReporter(const Dependencies& dependencies) : deps_(dependencies) {}

  // Call this regularly. `coordination_fails`: this agent cannot read or write the coordination store.
  void tick(bool coordination_fails);

  // The verdict, for `ckptctl health`.
  nlohmann::json report() const;
  // Which ranks hold training up, for `ckptctl status`. Null if no rank is suspected.
  nlohmann::json suspicion() const;
  // The halt of this incarnation, for `ckptctl status`. Null if there is none.
  nlohmann::json halt() const;

 private:
  void log_alarm();
  void log_suspicion();
  void log_halt();
  void observe(bool coordination_fails);
  void notify(const core::Health& health);

  const Dependencies deps_;
  core::Observed observed_;
  Clock::time_point observe_again_at_ = {};
  std::string logged_alarm_;
  core::Suspicion logged_suspicion_;
  std::string suspicion_text_;
  core::Halt logged_halt_;
  std::string halt_text_;
  std::optional<core::Health> logged_health_;
};

}  // namespace ckpt::agent
