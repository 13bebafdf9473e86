// Relay is one node's part in passing on reports and directives. Relays spare the leader of a large job many small
// messages. The nodes of a group report to one node of the group, the relay. The relay collects reports for a short
// while and sends them to the leader as one message. Directives come back the same way.
//
// The relay does not look into the reports that it passes on. It acknowledges each one at once. A node that gets no
// acknowledgements for a while reports to the leader directly. So nothing is lost if a relay dies. Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "core/events.hpp"

namespace ckpt::core {

// The bound of one batch: the number of its reports or directives, plus the number of pieces that these name.
inline constexpr std::size_t batch_max = 2048;

class Relay {
 public:
  explicit Relay(const Config& config) : config_(config) {}

  // `relay`: the node through which this node shall report. no_node: it reports directly. This node itself: it is the
  // relay of its group.
  void follow(NodeId leader, NodeId relay);

  void send_own(Report report, TimeMs now, Effects& effects);
  void on(NodeId from, const Report& report, TimeMs now, Effects& effects);       // a report of a node of its group
  void on(NodeId from, const DirectiveBatch& directive_batch, Effects& effects);  // passes on directives for others

  void reconcile(TimeMs now, Effects& effects);       // sends the collected reports if it is time
  std::optional<TimeMs> reconcile_wanted_at() const;  // when to call reconcile(); none: no report waits

 private:
  bool is_relay() const { return relay_ == config_.node; }
  bool is_unanswered(TimeMs now) const;
  bool trusts_relay(TimeMs now);
  void ask(NodeId whom, TimeMs now);
  void gather(const Report& report, TimeMs now);

  const Config config_;
  NodeId leader_ = no_node;
  NodeId relay_ = no_node;
  TimeMs shunned_until_ = 0;  // until then, this node reports to the leader directly

  NodeId asked_ = no_node;                  // where the last report went: to the relay, or from a relay to the leader
  std::optional<TimeMs> unanswered_since_;  // when the first report was sent that is not acknowledged

  std::map<NodeId, Report> batch_;  // the newest report of each node
  std::size_t batch_size_ = 0;
  TimeMs pass_on_at_ = 0;  // when to send the batch, if it is not empty
};

// Says for each node which node is its relay. Nodes form a group if their numbers have the same remainder modulo the
// number of groups. So groups are about equally large, even if some numbers are missing.
class Groups {
 public:
  Groups() = default;
  // `nodes`: how many nodes the job has. `present`: the reports of the nodes that are present, in order of node.
  Groups(std::size_t nodes, const std::vector<const Report*>& present, NodeId leader);
  NodeId relay_of(NodeId node) const;  // no_node: the node reports to the leader directly

 private:
  NodeId groups_ = 1;
  NodeId leader_ = no_node;
  std::map<NodeId, NodeId> relays_;  // [remainder]: the relay of that group
};

}  // namespace ckpt::core
