#include "protocol/relay.hpp"

#include <tuple>
#include <utility>

namespace ckpt::protocol {

namespace {

constexpr TimeMs gather_ms = 25;
constexpr TimeMs shun_ms = 10'000;

}  // namespace

void Relay::follow(NodeId root, NodeId relay) {
  root_ = root;
  if (relay != relay_) shunned_until_ = 0;
  relay_ = relay;
  if (asked_ == (is_relay() ? root_ : relay_)) return;
  asked_ = no_node;
  unanswered_since_.reset();
}

// The relay's patience with the root and a member's with the relay may pass one after the other, and the root's with
// the member must outlast both.
bool Relay::is_unanswered(TimeMs now) const {
  return unanswered_since_ && now - *unanswered_since_ >= config_.node_timeout_ms / 4;
}

bool Relay::trusts_relay(TimeMs now) {
  if (relay_ == no_node) return false;
  if (is_unanswered(now)) {
    unanswered_since_.reset();
    shunned_until_ = now + shun_ms;
  }
  return now >= shunned_until_;
}

void Relay::ask(NodeId whom, TimeMs now) {
  asked_ = whom;
  if (!unanswered_since_) unanswered_since_ = now;
}

void Relay::send_own(Report report, TimeMs now, Effects& effects) {
  if (is_relay()) return gather(report, now);
  const NodeId to = trusts_relay(now) ? relay_ : root_;
  if (to == relay_) ask(to, now);
  effects.push_back(Send{to, std::move(report)});
}

// One that is cut off from the root says so by its silence.
void Relay::on(NodeId from, const Report& report, TimeMs now, Effects& effects) {
  if (!is_relay() || is_unanswered(now)) return;
  gather(report, now);
  effects.push_back(Send{from, Dealt{}});
}

void Relay::on(NodeId from, const Dealt& dealt, Effects& effects) {
  if (from == asked_) unanswered_since_.reset();
  for (const Dealt::Item& item : dealt.items) {
    if (item.to != config_.node) effects.push_back(Send{item.to, Dealt{{item}}});
  }
}

void Relay::gather(const Report& report, TimeMs now) {
  if (bag_.empty()) pass_on_at_ = now + gather_ms;
  const auto [known, is_first] = bag_.try_emplace(report.node);
  const auto age = [](const Report& each) { return std::tie(each.agent_id, each.sequence); };
  if (!is_first && age(report) < age(known->second)) return;  // overtaken
  bag_size_ += is_first + report.pieces.size() - known->second.pieces.size();
  known->second = report;
  if (bag_size_ >= bag_max) pass_on_at_ = now;
}

void Relay::settle(TimeMs now, Effects& effects) {
  if (bag_.empty() || now < pass_on_at_) return;
  Gathered gathered;
  gathered.reports.reserve(bag_.size());
  for (auto& [node, report] : std::exchange(bag_, {})) gathered.reports.push_back(std::move(report));
  bag_size_ = 0;
  if (root_ == no_node) return;
  if (is_relay()) ask(root_, now);
  effects.push_back(Send{root_, std::move(gathered)});
}

std::optional<TimeMs> Relay::settle_wanted_at() const {
  return bag_.empty() ? std::nullopt : std::optional(pass_on_at_);
}

// ---- Groups ----

Groups::Groups(std::size_t nodes, const std::vector<const Report*>& present, NodeId root) : root_(root) {
  while (std::size_t{2} * groups_ * groups_ <= nodes) groups_ *= 2;
  for (const Report* report : present) {
    if (report->node != root) relays_.try_emplace(report->node % groups_, report->node);
  }
}

NodeId Groups::relay_of(NodeId node) const {
  const auto relay = relays_.find(node % groups_);
  return relay == relays_.end() || node == root_ ? no_node : relay->second;
}

}  // namespace ckpt::protocol
