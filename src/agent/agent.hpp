// The node's agent as a whole: takes the arena, joins the job, serves trainers and peers, until it is destroyed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/log.hpp"
#include "base/options.hpp"
#include "coord/store.hpp"
#include "net/transport.hpp"
#include "persist/checkpoint_source.hpp"

namespace ckpt::agent {

struct AgentSetup {
  Options options;
  std::unique_ptr<coord::Store> store;
  std::function<std::unique_ptr<net::Transport>(const net::TransportOptions&, net::Transport::Handlers)> make_transport;
  Log log;
  std::vector<persist::CheckpointSourceFactory> sources = {};  // of checkpoints, besides storage; the same on all nodes
  std::int64_t store_timeout_ms = 0;                           // of a call into the store; 0: as its kind wants
};

// With the store that the option `coordination` names, and UCX as transport.
AgentSetup standard_setup(const Options& options, Log log);

class Agent {
 public:
  // On return trainers can connect. Throws Failure.
  explicit Agent(AgentSetup setup);
  // The arena stays as it is. Bounded by the transport's progress timeout.
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Readable once the agent should be destroyed: somebody asked it to stop, or another agent serves the node.
  int stop_fd() const;
  // By then: that another agent serves the node, in a sentence; "" where it was asked to stop.
  std::string replaced() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace ckpt::agent
