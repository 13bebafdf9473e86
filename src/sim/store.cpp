#include "sim/store.hpp"

#include <algorithm>
#include <utility>

namespace ckpt::sim {

namespace {
constexpr TimeMs late_ms = 100;
}

Store::Store(Timeline& timeline, Random random, RootWritten root_written)
    : timeline_(timeline), random_(random), root_written_(std::move(root_written)) {}

void Store::read_root(NodeId by, Answer answer) {
  ask(
      by, false, [] {}, [this, answer = std::move(answer)] { answer(root_); });
}

void Store::read_life(NodeId by, Answer answer) {
  ask(
      by, false, [] {}, [this, answer = std::move(answer)] { answer(life_); });
}

void Store::swap(NodeId by, const protocol::SwapRoot& swap, Answer answer) {
  const auto apply = [this, by, swap] {
    if (root_.revision != swap.expected_revision) return;
    former_roots_.push_back(root_);
    root_ = {root_.revision + 1, swap.record};
    root_written_(by, root_);
  };
  ask(by, true, apply, [this, answer = std::move(answer)] { answer(root_); });
}

void Store::swap(NodeId by, const protocol::SwapLife& swap, LifeWritten written, Answer answer) {
  const auto apply = [this, swap, written = std::move(written)] {
    if (life_.revision != swap.expected_revision) return;
    const protocol::LifeRead before = life_;
    former_lives_.push_back(life_);
    life_ = {life_.revision + 1, swap.record};
    written(before, life_);
  };
  ask(by, true, apply, [this, answer = std::move(answer)] { answer(life_); });
}

void Store::write_seats(NodeId by, const protocol::SeatsName& name, std::size_t number,
                        std::vector<protocol::Seat> seats, std::function<void()> done) {
  const auto apply = [this, name, number, seats = std::move(seats)] { seats_[name].emplace(number, seats); };
  ask(by, false, apply, std::move(done));
}

void Store::read_seats(NodeId by, const protocol::SeatsName& name, Answer answer) {
  ask(
      by, false, [] {},
      [this, name, answer = std::move(answer)] {
        answer(protocol::SeatsRead{name, seats_of(name)});
      });
}

void Store::remove_seats(NodeId by, const protocol::RemoveSeats& removal) {
  const auto apply = [this, removal] {
    std::erase_if(seats_, [&](const auto& entry) { return entry.first.life < removal.before_life; });
  };
  ask(by, false, apply, [] {});
}

std::vector<protocol::Seat> Store::seats_of(const protocol::SeatsName& name) const {
  std::vector<protocol::Seat> seats;
  const auto found = seats_.find(name);
  if (found == seats_.end()) return seats;
  for (const auto& [number, some] : found->second) seats.insert(seats.end(), some.begin(), some.end());
  return seats;
}

protocol::Seating Store::seating(const protocol::SeatsName& name) const {
  return name.life == 0 ? protocol::Seating() : protocol::Seating(name.life, seats_of(name));
}

void Store::ask(NodeId by, bool is_swap, std::function<void()> apply, std::function<void()> answer) {
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
  if (connection.answered_at - now > late_ms) connection.late_until = connection.answered_at;
  timeline_.after(connection.applied_at - now, [this, apply = std::move(apply), era = era_] {
    if (era == era_) apply();
  });
  timeline_.after(connection.answered_at - now, [this, answer = std::move(answer), era = era_] {
    if (era == era_) answer();
  });
}

TimeMs Store::outage_left(NodeId by) const { return std::max<TimeMs>(0, answers_since(by) - timeline_.now()); }

TimeMs Store::answers_since(NodeId node) const {
  const auto own = cut_off_until_.find(node);
  const auto connection = connections_.find(node);
  return std::max({out_until_, own == cut_off_until_.end() ? 0 : own->second,
                   connection == connections_.end() ? 0 : connection->second.late_until});
}

void Store::outage(TimeMs duration_ms) { out_until_ = std::max(out_until_, timeline_.now() + duration_ms); }

void Store::cut_off(NodeId node, TimeMs duration_ms) {
  cut_off_until_[node] = std::max(cut_off_until_[node], timeline_.now() + duration_ms);
}

void Store::lose_answers(int swaps) { lost_answers_ = swaps; }

Store::Spoiled Store::lose_record() {
  const bool is_root = random_.chance(500);
  if (is_root) {
    root_ = {};
  } else {
    life_ = {};
  }
  return is_root ? Spoiled::root : Spoiled::life;
}

Store::Spoiled Store::take_back_record() {
  constexpr std::size_t writes_max = 6;
  const auto take_back = [&](auto& now, auto& former) {
    if (former.empty()) return false;
    const std::size_t back = 1 + random_.below(std::min(writes_max, former.size()));
    now = former[former.size() - back];
    return true;
  };
  if (random_.chance(500)) return take_back(root_, former_roots_) ? Spoiled::root : Spoiled::nothing;
  return take_back(life_, former_lives_) ? Spoiled::life : Spoiled::nothing;
}

void Store::clear() {
  ++era_;
  former_roots_.clear();
  former_lives_.clear();
  root_ = {};
  life_ = {};
  seats_.clear();
}

}  // namespace ckpt::sim
