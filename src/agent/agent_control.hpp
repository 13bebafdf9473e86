// AgentControl is the interface through which a part of the agent acts on the whole agent.
#pragma once

#include <string>

namespace ckpt::agent {

// Why the agent ends: somebody asked it to, or another agent serves its node now.
enum class EndReason { asked, replaced };

// Any thread may call these functions.
class AgentControl {
 public:
  virtual ~AgentControl() = default;
  // Asks for the agent's end and returns at once; the agent goes on until then. Makes Agent::stop_fd() readable. The
  // owner of the Agent object, which is main() of ckptd or a test, waits for that and then destroys the object. `why`:
  // a sentence for people, which is logged.
  virtual void stop(EndReason reason, const std::string& why) = 0;
  // Has the agent's unix socket made again, because somebody removed the socket's file. Returns at once; the socket's
  // thread makes it.
  virtual void listen_again() = 0;
};

}  // namespace ckpt::agent
