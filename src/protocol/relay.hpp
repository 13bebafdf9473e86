// How reports come to the leader where nodes are many: those of a group go to one of its nodes, the relay, which passes
// on what came within a short while as one message, unread. The leader answers the same way.
//
// A relay is a forwarder. Nothing depends on its memory, or on its being there: who takes reports in acknowledges them
// at once, and whoever is not acknowledged for a while goes without that relay.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "protocol/events.hpp"

namespace ckpt::protocol {

// So much goes into one batch: its reports or directives, and the pieces that these name.
inline constexpr std::size_t batch_max = 2048;

class Relay {
 public:
  explicit Relay(const Config& config) : config_(config) {}

  // Who is leader, and through whom it wants to hear this node: no_node, another one, or this one for its whole group.
  void follow(NodeId leader, NodeId relay);

  void send_own(Report report, TimeMs now, Effects& effects);
  void on(NodeId from, const Report& report, TimeMs now, Effects& effects);       // of a member
  void on(NodeId from, const DirectiveBatch& directive_batch, Effects& effects);  // hands on what is for others

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
  TimeMs shunned_until_ = 0;  // the relay

  NodeId asked_ = no_node;                  // to whom reports went last: the relay, or as relay the leader
  std::optional<TimeMs> unanswered_since_;  // the first of them that it has not acknowledged

  std::map<NodeId, Report> batch_;  // newest of each node
  std::size_t batch_size_ = 0;
  TimeMs pass_on_at_ = 0;  // while there is something in it
};

// Which node is relay of which, as the leader sees it. Nodes of a group have numbers of the same remainder, so that
// groups are equally long with gaps such as names get, and without. `present`: by node.
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

}  // namespace ckpt::protocol
