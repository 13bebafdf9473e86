// AgentConnection is the engine's connection to the node's agent, over a unix socket. It carries one request at a time.
// AgentLink uses it under its lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "arena/control.hpp"
#include "base/frame_socket.hpp"
#include "options/options.hpp"

namespace ckpt::client {

// Keeps an engine in this process's list of open engines (open_engines()), from construction to destruction. Each
// connection sends the list to the agent. If the process opens a second engine for the same rank, the agent does not
// give it the rank while the first one is in the list, because the first one may still write. Thread-safe.
class OpenEngine {
 public:
  explicit OpenEngine(std::uint64_t instance);
  ~OpenEngine();
  OpenEngine(const OpenEngine&) = delete;
  OpenEngine& operator=(const OpenEngine&) = delete;

  std::uint64_t instance() const { return instance_; }

 private:
  const std::uint64_t instance_;
};

std::vector<std::uint64_t> open_engines();  // the instances of all open engines

// If the answer's status is not CKPT_OK, throws Failure with this status and the answer's sentence.
void check_answer(const nlohmann::json& answer);

class AgentConnection {
 public:
  // Connects and claims the rank. Starts an agent if none answers and the options allow it. `instance` names this
  // engine. `incarnation` is 0 until the engine has restored. Throws Failure.
  static AgentConnection open(const Options& options, std::uint64_t instance, std::uint64_t incarnation);

  // Tells the agent that engine `instance` is closed. Use it for an engine that has lost its connection. A stopped
  // agent reads the message once it runs again. Does nothing if there is no agent.
  static void say_goodbye(const Options& options, std::uint64_t instance) noexcept;

  // Sends a request and returns the answer, which may be a refusal. Throws Failure if no valid answer comes:
  // CKPT_ERR_TIMEOUT after the deadline, CKPT_ERR_NO_AGENT if the connection breaks, and CKPT_ERR_INVALID for a message
  // that is malformed or too large. The connection is then no longer usable().
  // Until the agent answers, calls `meanwhile` again and again. If that returns false, it is not called any more. A
  // call should take a few milliseconds at most, and must not throw.
  Frame ask(const nlohmann::json& request, Deadline deadline, const std::function<bool()>& meanwhile = {});
  bool usable() const { return usable_; }

  // True if the agent has closed the connection. Call it between requests only.
  bool hung_up() const;

  const std::shared_ptr<arena::Control>& control() const { return control_; }

 private:
  explicit AgentConnection(FrameSocket socket) : socket_(std::move(socket)) {}
  Frame receive(Deadline deadline, const std::function<bool()>& meanwhile);

  FrameSocket socket_;
  bool usable_ = true;
  std::shared_ptr<arena::Control> control_;
};

}  // namespace ckpt::client
