// Looks whether somebody took files of the arena away. They have names that anybody of this user can remove, and
// systemd-logind does when the user logs out (RemoveIPC). What is mapped stays whole until this agent ends. So it makes
// the arena again, goes on, and says so. Belongs to the core thread.
#pragma once

#include <string>

#include "agent/agent_control.hpp"
#include "agent/event_log.hpp"
#include "agent/local_pieces.hpp"
#include "agent/pieces/segments.hpp"
#include "arena/node_arena.hpp"
#include "base/clock.hpp"

namespace ckpt::agent {

class ArenaWatch {
 public:
  // All outlive this object.
  ArenaWatch(arena::NodeArena& arena, const Segments& segments, LocalPieces& pieces, EventLog& event_log,
             AgentControl& agent)
      : arena_(arena), segments_(segments), pieces_(pieces), event_log_(event_log), agent_(agent) {}

  // Does nothing unless some time has passed since the last look.
  void tick();
  // What threatens the checkpoints here, in a sentence; "" if nothing does.
  const std::string& alarm() const { return alarm_; }

 private:
  bool make_again();

  arena::NodeArena& arena_;
  const Segments& segments_;
  LocalPieces& pieces_;
  EventLog& event_log_;
  AgentControl& agent_;
  Deadline look_at_ = Deadline::in_ms(0);
  std::string alarm_;
};

}  // namespace ckpt::agent
