#include "agent/member_watch.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::agent {
namespace {

using core::NodeId;

constexpr std::chrono::seconds probe_every{3};
constexpr std::size_t probes_max = 16;  // at a time

const char* sentence_of(net::Reach reach) {
  switch (reach) {
    case net::Reach::answers:
      return "its agent answers at its listener, so the agent is too slow or was away for a moment";
    case net::Reach::silent:
      return "its machine answers and its agent does not; that agent may be stopped";
    case net::Reach::ended:
      return "its machine answers, and its agent has ended";
    case net::Reach::unreachable:
      return "its machine cannot be reached: the machine is down, or the network is cut";
    case net::Reach::wrong_token:
      return "its agent has another token of the job; give that agent the token_file of the others and restart it";
    case net::Reach::unauthenticated_peer:
      return "an agent of another job, or of another version of ckptd, answers at its listener";
    case net::Reach::unknown:
      break;
  }
  return "its address is not known";
}

}  // namespace

void MemberWatch::carry_out(const core::MemberChanged& changed) {
  if (const auto probing = probing_.find(changed.node); probing != probing_.end()) {
    probing->second.push_back(changed);
    return;
  }
  if (changed.change != core::Change::lost || !peers_.all().contains(changed.node))
    return notify(changed, net::Reach::unknown);
  probing_[changed.node];
  peers_.probe(changed.node, [this, changed](net::Reach reach) { listener_answered(changed, reach); });
}

void MemberWatch::listener_answered(const core::MemberChanged& lost, net::Reach reach) {
  if (reach == net::Reach::wrong_token) distrusted_.insert(lost.node);
  notify(lost, reach);
  const auto since = probing_.extract(lost.node);
  for (const core::MemberChanged& changed : since.mapped()) notify(changed, net::Reach::unknown);
}

void MemberWatch::notify(const core::MemberChanged& changed, net::Reach reach) {
  const std::string node = peers_.name(changed.node);
  const std::string by = changed.by == core::no_node ? "" : peers_.name(changed.by);
  MemberNews news{job_, "", node, by, ""};
  const std::uint64_t epoch = core_.status().epoch;
  if (std::exchange(lost_epoch_, epoch) != epoch) lost_.clear();  // a leader finds its lost members again
  switch (changed.change) {
    case core::Change::lost:
      event_log_.note("node " + node + " does not answer any more: " + sentence_of(reach));
      news.change = "lost";
      news.reason = name_of(reach);
      lost_[changed.node] = reach;
      break;
    case core::Change::replaced:
      event_log_.note("standby node " + by + " takes the place of node " + node);
      news.change = "replaced";
      break;
    case core::Change::returned:
      event_log_.note("node " + node + " is back");
      news.change = "returned";
      lost_.erase(changed.node);
      break;
    case core::Change::released:
      event_log_.note("the job continues without node " + node);
      news.change = "released";
      lost_.erase(changed.node);
      break;
  }
  hook_.notify(std::move(news));
}

std::map<NodeId, net::Reach> MemberWatch::lost(std::uint64_t epoch) const {
  return epoch == lost_epoch_ ? lost_ : std::map<NodeId, net::Reach>();
}

// The leader probes nodes that it does not hear. A node that hears no leader probes all.
void MemberWatch::probe_silent(Clock::time_point now) {
  if (now < probe_again_at_) return;
  probe_again_at_ = now + probe_every;
  const core::NodeStatus status = core_.status();
  std::erase_if(distrusted_, [&](NodeId node) { return !peers_.all().contains(node); });
  const auto& all = peers_.all();
  std::size_t probes = 0;
  auto next = all.upper_bound(probed_last_);
  for (std::size_t i = 0; i < all.size(); ++i, ++next) {
    if (next == all.end()) next = all.begin();
    const NodeId node = next->first;
    const auto& present = status.nodes_present;
    const bool is_present = status.is_leader && std::find(present.begin(), present.end(), node) != present.end();
    if (is_present) distrusted_.erase(node);
    if (is_present || probes == probes_max) continue;
    ++probes;
    probed_last_ = node;
    peers_.probe(node, [this, node](net::Reach reach) {
      if (reach == net::Reach::wrong_token)
        distrusted_.insert(node);
      else
        distrusted_.erase(node);
    });
  }
}

}  // namespace ckpt::agent
