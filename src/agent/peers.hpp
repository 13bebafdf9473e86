// Peers knows the agents of the job's other nodes. It takes their names and addresses from the coordination store,
// sends messages to them and probes them. Only the agent's core thread uses it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/pieces/core_queue.hpp"
#include "coord/node_registry.hpp"
#include "core/message_codec.hpp"
#include "net/transport.hpp"

namespace ckpt::agent {

class Peers {
 public:
  // This agent, as the other agents see it.
  struct Own {
    core::NodeId node = 0;
    std::string name;
    std::uint64_t agent_id = 0;
  };
  // `queue` outlives this object.
  Peers(Own own, CoreQueue& queue) : own_(std::move(own)), queue_(queue) {}

  // Call this first. `transport` must outlive all use of this object.
  void use(net::Transport& transport) { transport_ = &transport; }

  // Takes entries from the store: of all nodes, or of those that changed. If an entry says that another agent serves
  // this node or has its number, returns a sentence about that and takes no further entry.
  std::optional<std::string> take(const std::vector<coord::NodeEntry>& nodes);

  core::NodeId own_node() const { return own_.node; }
  const std::map<core::NodeId, coord::NodeEntry>& all() const { return nodes_; }  // all but this node
  std::string name(core::NodeId node) const;

  // Sends a message. If the message gets lost, nobody repeats it.
  void send(core::NodeId to, const core::WireMessage& message);
  // Probes the listener of a node in all(). `answered` runs later, as a task of the core thread.
  void probe(core::NodeId node, std::function<void(net::Reach)> answered);

 private:
  std::optional<std::string> conflict(const coord::NodeEntry& node) const;

  const Own own_;
  CoreQueue& queue_;
  net::Transport* transport_ = nullptr;
  std::map<core::NodeId, coord::NodeEntry> nodes_;
};

}  // namespace ckpt::agent
