// QueuedRequests brings the requests of trainers and tools from the server's thread to the agent's core thread, which
// answers them.
#pragma once

#include <string>

#include "agent/agent_control.hpp"
#include "agent/pieces/core_queue.hpp"
#include "agent/status.hpp"
#include "agent/trainers/trainer_manager.hpp"
#include "agent/trainers/trainer_requests.hpp"

namespace ckpt::agent {

// Any thread may call the functions of TrainerRequests.
class QueuedRequests : public TrainerRequests {
 public:
  // All arguments outlive this object and the tasks that it posts.
  QueuedRequests(CoreQueue& queue, TrainerManager& trainers, arena::NodeArena& arena, EventLog& event_log,
                 AgentControl& agent, const StatusSources& status)
      : queue_(queue), trainers_(trainers), arena_(arena), event_log_(event_log), agent_(agent), status_(status) {}

  void hello(const core::TrainerHello& hello, std::int64_t pid, Respond respond) override;
  void exited(Asker asker, bool died) override;
  void restore(Asker asker, const RestoreRequest& request, Respond respond) override;
  void restored(Asker asker, std::string no_replication, Respond respond) override;
  void corrupt(Asker asker, const CorruptRequest& request, std::int64_t timeout_ms, Respond respond) override;
  void reserve(Asker asker, const ReserveRequest& request, Respond respond) override;
  void trouble(Asker asker, std::string text, Respond respond) override;
  void status(Respond respond) override;
  void health(Respond respond) override;
  void trace(Respond respond) override;
  void stop(Respond respond) override;

 private:
  CoreQueue& queue_;
  TrainerManager& trainers_;
  arena::NodeArena& arena_;
  EventLog& event_log_;
  AgentControl& agent_;
  const StatusSources status_;
};

}  // namespace ckpt::agent
