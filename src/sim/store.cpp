#include "sim/store.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::sim {

Store::Store(Timeline& timeline, Random random, Watchers watchers)
    : timeline_(timeline), random_(random), watchers_(std::move(watchers)) {}

void Store::read_root(NodeId by, Answer answer) {
  ask(
      by, false, [] {}, [this] { return protocol::Event{root_}; }, std::move(answer));
}

void Store::read_life(NodeId by, Answer answer) {
  ask(
      by, false, [] {}, [this] { return protocol::Event{life_}; }, std::move(answer));
}

void Store::swap(NodeId by, const protocol::SwapRoot& swap, Answer answer) {
  const auto apply = [this, by, swap] {
    if (root_.revision != swap.expected_revision) return;
    root_ = {root_.revision + 1, swap.record};
    watchers_.root_written(by, root_);
  };
  ask(
      by, true, apply, [this] { return protocol::Event{root_}; }, std::move(answer));
}

void Store::swap(NodeId by, const protocol::SwapLife& swap, Answer answer) {
  const auto apply = [this, by, swap] {
    if (life_.revision != swap.expected_revision) return;
    const protocol::LifeRead before = life_;
    life_ = {life_.revision + 1, swap.record};
    watchers_.life_written(by, before, life_);
  };
  ask(
      by, true, apply, [this] { return protocol::Event{life_}; }, std::move(answer));
}

void Store::ask(NodeId by, bool is_swap, std::function<void()> apply, std::function<protocol::Event()> read,
                Answer answer) {
  const TimeMs wait = outage_left(by);
  TimeMs apply_after = random_.between(1, 10);
  TimeMs answer_after = apply_after + random_.between(1, 10);
  if (wait > 0) {
    // Half of what is asked in an outage was carried out before nobody answered any more.
    if (random_.chance(500)) apply_after += wait;
    answer_after += wait;
  }
  if (is_swap && lost_answers_ > 0) {
    --lost_answers_;
    answer_after += random_.between(500, 5000);
  }
  const TimeMs now = timeline_.now();
  Connection& connection = connections_[by];
  connection.applied_at = std::max(connection.applied_at, now + apply_after);
  connection.answered_at = std::max({connection.answered_at, connection.applied_at, now + answer_after});
  timeline_.after(connection.applied_at - now, [this, apply = std::move(apply), era = era_] {
    if (era == era_) apply();
  });
  timeline_.after(connection.answered_at - now, [this, read = std::move(read), answer = std::move(answer), era = era_] {
    if (era == era_) answer(read());
  });
}

TimeMs Store::outage_left(NodeId by) const {
  const auto own = cut_off_until_.find(by);
  const TimeMs until = std::max(out_until_, own == cut_off_until_.end() ? 0 : own->second);
  return std::max<TimeMs>(0, until - timeline_.now());
}

void Store::outage(TimeMs duration_ms) { out_until_ = std::max(out_until_, timeline_.now() + duration_ms); }

void Store::cut_off(NodeId node, TimeMs duration_ms) {
  cut_off_until_[node] = std::max(cut_off_until_[node], timeline_.now() + duration_ms);
}

void Store::lose_answers(int swaps) { lost_answers_ = swaps; }

void Store::clear() {
  ++era_;
  root_ = {};
  life_ = {};
}

}  // namespace ckpt::sim
