// ArenaWatch notices if somebody removes files of the node's arena. Any process of the same user can do that.
// systemd-logind does it when the user logs out (RemoveIPC). The agent still has the files mapped, so no data is lost,
// but no new process can open the files. ArenaWatch makes the removed files again and raises an alarm. Only the agent's
// core thread uses it.
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
  // All arguments outlive this object.
  ArenaWatch(arena::NodeArena& arena, const Segments& segments, LocalPieces& pieces, EventLog& event_log,
             AgentControl& agent)
      : arena_(arena), segments_(segments), pieces_(pieces), event_log_(event_log), agent_(agent) {}

  // Looks for removed files, at most every 250 ms.
  void tick();
  // A sentence about what threatens the checkpoints here; "" if nothing does.
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
