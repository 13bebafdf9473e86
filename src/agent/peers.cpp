#include "agent/peers.hpp"

namespace ckpt::agent {

std::string Peers::name(core::NodeId node) const {
  if (node == own_.node) return own_.name;
  const auto found = nodes_.find(node);
  return found != nodes_.end() ? found->second.name : "number " + std::to_string(node);
}

std::optional<std::string> Peers::take(const std::vector<coord::NodeEntry>& nodes) {
  for (const coord::NodeEntry& node : nodes) {
    if (auto why = conflict(node)) return why;
    if (node.id == own_.node || (nodes_.contains(node.id) && nodes_.at(node.id) == node)) continue;
    nodes_[node.id] = node;
    transport_->set_peer(node.id, node.arena_id, node.address);
  }
  return std::nullopt;
}

std::optional<std::string> Peers::conflict(const coord::NodeEntry& node) const {
  if (node.id != own_.node) return std::nullopt;
  if (node.name != own_.name) {
    // The store lost the record of this number, and two nodes took the number. The agent that started later gives way.
    if (node.agent_id > own_.agent_id) return std::nullopt;
    return "node " + node.name + " has the same number as this node, " + std::to_string(own_.node) +
           ", and its agent started first; this agent ends, and gets another number when it is started again";
  }
  if (node.agent_id == own_.agent_id) return std::nullopt;
  return "node " + node.name + " is now served by another agent (process " + std::to_string(node.pid) +
         "), so this agent ends; give each machine a different node name (option node)";
}

void Peers::send(core::NodeId to, const core::WireMessage& message) { transport_->send(to, encode(message)); }

void Peers::probe(core::NodeId node, std::function<void(net::Reach)> answered) {
  const coord::NodeEntry& entry = nodes_.at(node);
  // The answer may come after this agent's core thread has ended.
  auto later = [alive = queue_.weak_from_this(), answered = std::move(answered)](net::Reach reach) {
    if (const auto queue = alive.lock()) queue->post([answered, reach] { answered(reach); });
  };
  transport_->probe(node, entry.arena_id, entry.address, std::move(later));
}

}  // namespace ckpt::agent
