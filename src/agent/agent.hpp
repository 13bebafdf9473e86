// Agent is a node's whole agent as one object, for the daemon ckptd and for tests. It opens the arena, joins the job,
// and serves trainers and other agents until it is destroyed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/log.hpp"
#include "coord/store.hpp"
#include "net/transport.hpp"
#include "options/options.hpp"
#include "persist/checkpoint_source.hpp"

namespace ckpt::agent {

// What an Agent needs.
struct AgentSetup {
  Options options;
  std::unique_ptr<coord::Store> store;
  std::function<std::unique_ptr<net::Transport>(const net::TransportOptions&, net::Transport::Handlers)> make_transport;
  Log log;
  // Besides storage, other places outside the nodes' memory that offer checkpoints (persist/checkpoint_source.hpp). All
  // nodes need the same ones.
  std::vector<persist::CheckpointSourceFactory> sources = {};
  std::int64_t store_timeout_ms = 0;  // limit for one call to `store`; 0: 5 s for a directory, 20 s for etcd
};

// Returns the setup for ckptd: with the store and the transport that the options `coordination` and `transport` name.
AgentSetup standard_setup(const Options& options, Log log);

class Agent {
 public:
  // Trainers can connect once the constructor has returned. Throws Failure.
  explicit Agent(AgentSetup setup);
  // Ends the agent and leaves the arena as it is. Waits for the transport, at most
  // TransportOptions::progress_timeout_ms, and up to 10 s for a member hook that is a URL and is being called.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // A descriptor that belongs to the agent. It becomes readable when the owner should destroy this object, because
  // somebody asked the agent to stop, or because another agent serves the node.
  int stop_fd() const;
  // If another agent serves the node, a sentence that says so. "" if somebody asked the agent to stop. Valid once
  // stop_fd() is readable.
  std::string replaced() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ckpt::agent
