// A connection to the node's agent, from hello to the end. Requests one at a time; used under AgentLink's lock.
#pragma once

#include <cstdint>
#include <memory>

#include "arena/control.hpp"
#include "base/frame_socket.hpp"
#include "base/options.hpp"

namespace ckpt::engine {

inline constexpr int protocol_version = 1;

// Throws Failure with status and sentence of an answer that is not CKPT_OK.
void check_answer(const nlohmann::json& answer);

class AgentConnection {
 public:
  // Connects, starts an agent where none answers and the options say so, and claims the rank. `instance` names this
  // engine; `incarnation` is 0 until it has restored. Throws Failure.
  static AgentConnection open(const Options& options, std::uint64_t instance, std::uint64_t incarnation);

  // Says that engine `instance`, which has lost its connection, is closed. An agent that is stopped reads it once it
  // runs again; where there is no agent, nobody hears it.
  static void say_goodbye(const Options& options, std::uint64_t instance) noexcept;

  // Sends a request and returns the answer, which may be a refusal. Throws Failure where there is none:
  // CKPT_ERR_TIMEOUT, CKPT_ERR_NO_AGENT or CKPT_ERR_INVALID; the connection is not usable() any more then.
  Frame ask(const nlohmann::json& request, Deadline deadline);
  bool usable() const { return usable_; }

  // The agent has gone. For use between requests.
  bool hung_up() const;

  const std::shared_ptr<arena::Control>& control() const { return control_; }

 private:
  explicit AgentConnection(FrameSocket socket) : socket_(std::move(socket)) {}

  FrameSocket socket_;
  bool usable_ = true;
  std::shared_ptr<arena::Control> control_;
};

}  // namespace ckpt::engine
