// AgentControl is the interface through which a part of the agent acts on the whole agent.
#pragma once

#include <string>

namespace ckpt::agent {

// Why the agent ends: somebody asked it to, or another agent serves its node now.
enum class EndReason { asked, replaced };

// Any thread may call its functions.
class AgentControl {
 public:
  virtual ~AgentControl() = default;
  virtual void stop(EndReason reason, const std::string& why) = 0;
  // Makes the agent's socket again, because somebody removed its file.
  virtual void listen_again() = 0;
};

}  // namespace ckpt::agent
