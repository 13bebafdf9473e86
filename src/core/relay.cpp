#include "core/relay.hpp"

#include <tuple>
#include <utility>

namespace ckpt::core {

namespace {

constexpr TimeMs gather_ms = 25;
constexpr TimeMs shun_ms = 10'000;

}  // namespace

void Relay::follow(NodeId leader, NodeId relay) {
  leader_ = leader;
  if (relay != relay_) shunned_until_ = 0;
  relay_ = relay;
  if (asked_ == (is_relay() ? leader_ : relay_)) return;
  asked_ = no_node;
  unanswered_since_.reset();
}

// A relay may wait its full limit for the leader, and then a member its full limit for the relay. The leader must wait
// longer for the member than both together.
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
  const NodeId to = trusts_relay(now) ? relay_ : leader_;
  if (to == relay_) ask(to, now);
  effects.push_back(Send{to, std::move(report)});
}

// A relay that is cut off from the leader shows it by its silence.
void Relay::on(NodeId from, const Report& report, TimeMs now, Effects& effects) {
  if (!is_relay() || is_unanswered(now)) return;
  gather(report, now);
  effects.push_back(Send{from, DirectiveBatch{}});
}

void Relay::on(NodeId from, const DirectiveBatch& directive_batch, Effects& effects) {
  if (from == asked_) unanswered_since_.reset();
  for (const DirectiveBatch::Item& item : directive_batch.items) {
    if (item.to != config_.node) effects.push_back(Send{item.to, DirectiveBatch{{item}}});
  }
}

void Relay::gather(const Report& report, TimeMs now) {
  if (batch_.empty()) pass_on_at_ = now + gather_ms;
  const auto [known, is_first] = batch_.try_emplace(report.node);
  const auto age = [](const Report& each) { return std::tie(each.agent_id, each.sequence); };
  if (!is_first && age(report) < age(known->second)) return;  // an overtaken report
  batch_size_ += is_first + report.pieces.size() - known->second.pieces.size();
  known->second = report;
  if (batch_size_ >= batch_max) pass_on_at_ = now;
}

void Relay::reconcile(TimeMs now, Effects& effects) {
  if (batch_.empty() || now < pass_on_at_) return;
  ReportBatch report_batch;
  report_batch.reports.reserve(batch_.size());
  for (auto& [node, report] : std::exchange(batch_, {})) report_batch.reports.push_back(std::move(report));
  batch_size_ = 0;
  if (leader_ == no_node) return;
  if (is_relay()) ask(leader_, now);
  effects.push_back(Send{leader_, std::move(report_batch)});
}

std::optional<TimeMs> Relay::reconcile_wanted_at() const {
  return batch_.empty() ? std::nullopt : std::optional(pass_on_at_);
}

// ---- Groups ----

Groups::Groups(std::size_t nodes, const std::vector<const Report*>& present, NodeId leader) : leader_(leader) {
  while (std::size_t{2} * groups_ * groups_ <= nodes) groups_ *= 2;
  for (const Report* report : present) {
    if (report->node != leader) relays_.try_emplace(report->node % groups_, report->node);
  }
}

NodeId Groups::relay_of(NodeId node) const {
  const auto relay = relays_.find(node % groups_);
  return relay == relays_.end() || node == leader_ ? no_node : relay->second;
}

}  // namespace ckpt::core
