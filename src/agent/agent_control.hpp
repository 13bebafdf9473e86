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
  // Makes Agent::stop_fd() readable, so that the agent is destroyed. `why`: a sentence for people.
  virtual void stop(EndReason reason, const std::string& why) = 0;
  // Makes the agent's unix socket again, because somebody removed the socket's file.
  virtual void listen_again() = 0;
};

}  // namespace ckpt::agent
