// MemberWatch watches the job's nodes for the leader's agent. It probes members that do not answer. It tells people and
// the operator's hook about members that are lost, replaced, back or released. It also finds agents whose listeners
// refuse this agent because of another token. Only the agent's core thread uses it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/event_log.hpp"
#include "agent/member_hook.hpp"
#include "agent/peers.hpp"
#include "core/node.hpp"

namespace ckpt::agent {

class MemberWatch {
 public:
  // All references outlive this object. `hook`: the option member_hook.
  MemberWatch(std::string job, const std::string& hook, Peers& peers, const core::Node& core, EventLog& event_log,
              const Log& log)
      : job_(std::move(job)), hook_(hook, log), peers_(peers), core_(core), event_log_(event_log) {}

  // Tells people and the hook about a change of a member. If the member is lost, probes its listener first, because the
  // operator needs to know whether the machine answers. Further changes of this member wait until the probe has ended.
  void carry_out(const core::MemberChanged& changed);

  // Probes the listeners of nodes: on the leader, of those that it does not hear, elsewhere of all. At most 16 nodes,
  // in turn, and at most every 3 s.
  void probe_silent(Clock::time_point now);
  // Nodes whose listeners refused this agent because of another token.
  const std::set<core::NodeId>& distrusted() const { return distrusted_; }

  // The members that this agent found lost while it led in `epoch` and that are still lost. Each with what its probe
  // found.
  std::map<core::NodeId, net::Reach> lost(std::uint64_t epoch) const;

 private:
  void notify(const core::MemberChanged& changed, net::Reach reach);
  void listener_answered(const core::MemberChanged& lost, net::Reach reach);

  const std::string job_;
  MemberHook hook_;
  Peers& peers_;
  const core::Node& core_;
  EventLog& event_log_;
  std::map<core::NodeId, net::Reach> lost_;  // lost while this agent led in lost_epoch_
  std::uint64_t lost_epoch_ = 0;
  // By lost member that is being probed: the changes that are told once the probe has ended.
  std::map<core::NodeId, std::vector<core::MemberChanged>> probing_;
  Clock::time_point probe_again_at_ = {};
  core::NodeId probed_last_ = 0;
  std::set<core::NodeId> distrusted_;
};

}  // namespace ckpt::agent
