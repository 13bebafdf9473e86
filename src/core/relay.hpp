// Relays spare the leader of a large job many small messages. The nodes of a group report to one of them, the relay.
// The relay collects reports for a short while and sends them to the leader as one message. Directives come back the
// same way.
//
// The relay does not read what it passes on. It acknowledges each report at once. A node that misses acknowledgements
// for a while reports to the leader directly. So nothing is lost if a relay dies.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/events.hpp"

namespace ckpt::core {

// The bound of one batch: its reports or directives, plus the pieces that these name.
inline constexpr std::size_t batch_max = 2048;

class Relay {
 public:
  explicit Relay(const Config& config) : config_(config) {}

  // `relay`: the node that this node shall report through. no_node: report directly. This node itself: it is its
  // group's relay.
  void follow(NodeId leader, NodeId relay);

  void send_own(Report report, TimeMs now, Effects& effects);
  void on(NodeId from, const Report& report, TimeMs now, Effects& effects);       // from a member
  void on(NodeId from, const DirectiveBatch& directive_batch, Effects& effects);  // passes on what is for others

  void reconcile(TimeMs now, Effects& effects);  // passes the batch on when it is time
  std::optional<TimeMs> reconcile_wanted_at() const;

 private:
  bool is_relay() const { return relay_ == config_.node; }
  bool is_unanswered(TimeMs now) const;
  bool trusts_relay(TimeMs now);
  void ask(NodeId whom, TimeMs now);
  void gather(const Report& report, TimeMs now);

  const Config config_;
  NodeId leader_ = no_node;
  NodeId relay_ = no_node;
  TimeMs shunned_until_ = 0;  // until then, this node does not use the relay

  NodeId asked_ = no_node;                  // where reports went last: to the relay, or from a relay to the leader
  std::optional<TimeMs> unanswered_since_;  // when the first unacknowledged one was sent

  std::map<NodeId, Report> batch_;  // the newest report of each node
  std::size_t batch_size_ = 0;
  TimeMs pass_on_at_ = 0;  // counts only while batch_ is not empty
};

// Says which node is the relay of which node. Nodes whose numbers have the same remainder form a group, so groups stay
// equally large even if numbers are missing. `present` must be in order of node.
class Groups {
 public:
  Groups() = default;
  Groups(std::size_t nodes, const std::vector<const Report*>& present, NodeId leader);
  NodeId relay_of(NodeId node) const;  // no_node: it reports to the leader

 private:
  NodeId groups_ = 1;
  NodeId leader_ = no_node;
  std::map<NodeId, NodeId> relays_;  // by remainder
};

}  // namespace ckpt::core
